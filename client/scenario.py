"""Scenarios of `bargein test`: what a simulated caller does and what is expected, from YAML, checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml


class ScenarioError(Exception):
    """A scenario that cannot be played; the message names file and key."""


class Voice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The caller's voice: the server's own speech route, or espeak-ng. `pitch` 1.2: a fifth higher and faster."""

    engine: Literal["server", "espeak"] = "server"
    speed: float = 1.0
    pitch: float = 1.0
    variant: str = "en-us"  # of espeak-ng


class ToolCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool of the agent's that must have been called, with at least these arguments."""

    name: str
    arguments: dict[str, Any] = {}


class Hear(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole answer to what was said last. Words are compared without case; `matches` is a regular expression.

    `within_ms`: from the caller's last voiced sample (or the call's begin) to the first audible sample of the answer.
    """

    contains: str | list[str] = []
    lacks: str | list[str] = []
    matches: str = ""
    within_ms: float | None = None
    tool: ToolCheck | None = None
    no_tool: bool = False
    user_said: str = ""  # what the agent must have understood
    timeout_s: float = 30.0


class Interrupt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speak while the agent does. `stops_within_ms`: from the first voiced sample to its last audio; `goes_on`: it must not
    stop at all."""

    say: str
    after_ms: float = 800
    stops_within_ms: float | None = None
    goes_on: bool = False


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of these. `say`: a text, or texts and pauses (ms) in turn."""

    say: str | list[str | float] | None = None
    type: str | None = None
    hear: Hear | None = None
    interrupt: Interrupt | None = None
    wait_ms: float | None = None
    ends: float | None = None  # the agent ends the call within so many seconds

    @property
    def kind(self) -> str:
        return next(k for k in self.__struct_fields__ if getattr(self, k) is not None)


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: list[Step]
    name: str = ""
    about: str = ""
    agent: str = ""
    variables: dict[str, str] = {}
    session: dict[str, Any] = {}  # a session.update
    voice: Voice = Voice()
    noise_db: float | None = None  # level of white noise at the microphone, dBFS


def load(file: Path) -> Scenario:
    """Raises ScenarioError."""
    try:
        given = yaml.safe_load(file.read_text())
    except OSError as problem:
        raise ScenarioError(f"{file}: {problem.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise ScenarioError(f"{file}: not valid YAML: {problem}") from None
    try:
        scenario = msgspec.convert(given, Scenario)
    except msgspec.ValidationError as problem:
        raise ScenarioError(f"{file}: {problem}") from None
    for n, step in enumerate(scenario.steps, 1):
        if sum(getattr(step, k) is not None for k in step.__struct_fields__) != 1:
            raise ScenarioError(f"{file}: step {n}: give one of {', '.join(Step.__struct_fields__)}")
    return scenario if scenario.name else msgspec.structs.replace(scenario, name=file.stem)
