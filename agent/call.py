"""What a tool is given of the call that it works for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol


class Line(Protocol):
    """The session's side of a call; both are called on the session's loop."""

    def say(self, text: str) -> None: ...
    def keys(self, most: int, timeout_s: float) -> Coroutine[Any, Any, str]: ...


class Call:
    """A tool's parameter of this type gets the call. `variables` are the session's; changes last as long as it does."""

    def __init__(
        self, session_id: str, agent: str, variables: dict[str, str], loop: asyncio.AbstractEventLoop, line: Line
    ) -> None:
        self.session_id, self.agent, self.variables = session_id, agent, variables
        self._loop, self._line = loop, line

    def say(self, text: str) -> None:
        """Have a sentence said while the tool works, as soon as nothing else is. From any thread."""
        self._loop.call_soon_threadsafe(self._line.say, text)

    async def keys(self, most: int = 20, timeout_s: float = 10.0) -> str:
        """Telephone keys that the caller presses from now on: up to `#` (left out), `most` of them, or `timeout_s` after
        the last one."""
        waiting = asyncio.run_coroutine_threadsafe(self._line.keys(most, timeout_s), self._loop)
        return await asyncio.wrap_future(waiting)


