"""Runs the tools of one session. What a tool does can neither block the server nor end the call.

Sync functions run on a thread each, async ones and MCP servers on one loop of their own. A thread that hangs cannot be
ended: its answer is no longer waited for, and it counts against the number of threads until it returns.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.settings import Patch, parse

from .call import Call
from .definition import END_CALL, TRANSFER, Agent, Mcp, Tool, ToolError

log = logging.getLogger("bargein.tools")

T = TypeVar("T")
MAX_RESULT = 32 * 1024  # characters that chat is given of an answer
TOO_LARGE = 256 * 1024  # beyond this an answer is a mistake
MAX_THREADS = 64
MAX_BAD = 2  # arguments in a row that fit no schema, before the caller hears of it


class McpCalls(Protocol):
    """The connections to MCP servers."""

    async def call(self, source: Mcp, name: str, arguments: dict[str, Any]) -> str:
        """The answer's text. Raises ToolError."""


class Session(Protocol):
    """What the session's runner offers."""

    @property
    def session_id(self) -> str: ...
    def tell(self, ev: e.Input) -> None: ...
    def now(self) -> float: ...


class Workshop:
    """Where tools run: one a server. `start` before use; `close` at the end."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._num_threads = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tools", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self) -> None:
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the loop; what still runs on it is abandoned."""
        if self.is_open:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(2)

    def on_loop(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine on the tools' own loop; cancelling the future cancels it."""

        async def guarded() -> T:
            try:
                return await work
            except (SystemExit, KeyboardInterrupt) as raised:  # it must not end the loop
                raise ToolError(f"{type(raised).__name__}: {raised}") from None

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(guarded(), self.loop))

    def on_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function on a thread of its own. Raises ToolError where too many run."""
        with self._lock:
            if self._num_threads >= MAX_THREADS:
                raise ToolError("too many tools are running")
            self._num_threads += 1
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                result, problem = work(), None
            except Exception as raised:
                result, problem = None, raised
            except BaseException as raised:  # it must end neither this thread's nor the session's loop
                result, problem = None, ToolError(f"{type(raised).__name__}: {raised}")
            finally:
                with self._lock:
                    self._num_threads -= 1
            if done.set_running_or_notify_cancel():
                done.set_result(result) if problem is None else done.set_exception(problem)

        threading.Thread(target=run, name="tool", daemon=True).start()
        return asyncio.wrap_future(done)


class Hands:
    """One session's. `agents`: all of the server's, for hand-offs; `switch` is told of one."""

    def __init__(
        self,
        workshop: Workshop,
        agents: Mapping[str, Agent],
        agent: Agent,
        variables: Mapping[str, str],
        *,
        mcp: McpCalls | None = None,
        switch: Callable[[Agent], None] = lambda agent: None,
    ) -> None:
        self._workshop, self._agents, self._mcp, self._switch = workshop, agents, mcp, switch
        self.agent, self.variables = agent, {**agent.variables, **variables}
        self._session: Session | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._keys: asyncio.Queue[str] | None = None  # of a tool that waits for them
        self._num_bad = 0

    def bind(self, runner: Session) -> None:
        """The session that answers go to."""
        self._session = runner

    # --- the session's side ---

    def run(self, effect: f.RunTool) -> None:
        """Begin to run a tool; its answer comes as `ToolDone`."""
        task = asyncio.get_running_loop().create_task(self._answer(effect), name=f"tool {effect.name}")
        self._tasks[effect.call_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(effect.call_id, None))

    def cancel(self, call_id: str) -> None:
        if task := self._tasks.get(call_id):
            task.cancel()

    def close(self) -> None:
        """The session is over."""
        for task in list(self._tasks.values()):
            task.cancel()

    def key(self, key: str) -> bool:
        """A telephone key; whether a tool takes it."""
        if self._keys is None:
            return False
        self._keys.put_nowait(key)
        return True

    # --- a tool's side ---

    def say(self, text: str) -> None:
        if self._session is not None:
            self._session.tell(e.Say(self._session.now(), text))

    async def keys(self, most: int, timeout_s: float) -> str:
        self._keys = self._keys or asyncio.Queue()
        got = ""
        try:
            while len(got) < most:
                key = await asyncio.wait_for(self._keys.get(), timeout_s)
                if key == "#":
                    break
                got += key
        except TimeoutError:
            pass
        finally:
            self._keys = None
        return got

    # --- work ---

    async def _answer(self, effect: f.RunTool) -> None:
        output, outcome = "", "failed"
        tool = self.agent.tools.get(effect.name)
        try:
            if tool is None:
                raise ToolError(f"there is no tool {effect.name}")
            if effect.name == END_CALL:
                self._tell(effect, "ok", "ended")
                return
            if effect.name.startswith(TRANSFER) and tool.function is None and tool.mcp is None:
                self._hand_over(effect, self._agents[effect.name.removeprefix(TRANSFER)])
                return
            output, outcome = await self._run(tool, effect.arguments)
        except TimeoutError:
            assert tool is not None
            output = _error(f"it took longer than {tool.timeout_s:g} s")
        except ToolError as problem:
            output = _error(str(problem))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            output = _error("the tool was cancelled")
        except Exception as problem:  # the tool's fault, which must not be the call's
            log.warning("tool %s failed", effect.name, exc_info=problem)
            output = _error(f"{type(problem).__name__}: {problem}")
        self._tell(effect, output, outcome)

    async def _run(self, tool: Tool, text: str) -> tuple[str, str]:
        """A tool's answer and its outcome. Raises what the tool raises, and TimeoutError."""
        async with asyncio.timeout(tool.timeout_s):
            if tool.mcp is not None:
                assert self._mcp is not None
                arguments = msgspec.json.decode(text or "{}")
                result: Any = await self._workshop.on_loop(self._mcp.call(tool.mcp, tool.name, arguments))
                return _as_text(result)
            assert tool.function is not None and tool.signature is not None
            try:
                given = tool.signature.arguments(text)
            except ValueError as problem:  # for the model to correct, not for ever
                self._num_bad += 1
                return _error(f"the arguments do not fit: {problem}"), "failed" if self._num_bad > MAX_BAD else "answered"
            self._num_bad = 0
            if tool.signature.context is not None:
                loop = asyncio.get_running_loop()
                session_id = self._session.session_id if self._session is not None else ""
                given[tool.signature.context] = Call(session_id, self.agent.name, self.variables, loop, self)
            function = tool.function
            if inspect.iscoroutinefunction(function):
                result = await self._workshop.on_loop(function(**given))
            else:
                result = await self._workshop.on_thread(lambda: function(**given))
        return _as_text(result)

    def _hand_over(self, effect: f.RunTool, to: Agent) -> None:
        self.agent, self.variables = to, {**to.variables, **self.variables}
        self._switch(to)
        rules = to.rules(self.variables)
        values = dict(parse(to.update(self.variables)).values) | {"agent": msgspec.to_builtins(rules)}
        assert self._session is not None
        self._session.tell(e.UpdateSession(self._session.now(), Patch(values, frozenset(), frozenset(), ())))
        self._tell(effect, f"the caller is with {to.name} now", "quiet" if rules.greeting else "answered")
        self.say(rules.greeting)

    def _tell(self, effect: f.RunTool, output: str, outcome: Any) -> None:
        assert self._session is not None
        self._session.tell(e.ToolDone(self._session.now(), effect.call_id, output, outcome))


def _error(message: str) -> str:
    return msgspec.json.encode({"error": message[:1000]}).decode()


def _as_text(result: Any) -> tuple[str, str]:
    """What chat is given of a result; a long one is cut with a note, one that is far too long has failed."""
    if not isinstance(result, str):
        try:
            result = msgspec.json.encode(result).decode()
        except TypeError as problem:
            raise ToolError(f"the result cannot be written as JSON: {problem}") from None
    if len(result) > TOO_LARGE:
        return _error(f"the result is {len(result)} characters long, more than {TOO_LARGE}"), "failed"
    if len(result) > MAX_RESULT:
        result = result[:MAX_RESULT] + f"\n(cut here; the whole result is {len(result)} characters)"
    return result, "answered"
