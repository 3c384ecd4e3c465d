"""Agents from files. Every problem is an AgentError that names the file and the key, or the line."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import tomllib
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .definition import Agent, AgentError

KEYS = tuple(k for k in inspect.signature(Agent).parameters)


def load(files: Sequence[Path]) -> dict[str, Agent]:
    """Every agent of these files by its name, in their order. Raises AgentError."""
    found: dict[str, Agent] = {}
    for file in files:
        for agent in _of_file(file):
            if agent.name in found:
                raise AgentError(f"{file}: name: there is an agent {agent.name} already")
            found[agent.name] = agent
    for agent in found.values():
        for other in agent.handoffs:
            if other not in found:
                raise AgentError(f"agent {agent.name}: handoffs: there is no agent {other} (known: {', '.join(found)})")
    return found


def _of_file(file: Path) -> list[Agent]:
    if file.suffix == ".toml":
        return [_of_toml(file)]
    if file.suffix == ".py":
        agents = [x for x in vars(_module(file)).values() if isinstance(x, Agent)]
        if not agents:
            raise AgentError(f"{file}: it makes no Agent")
        return list(dict.fromkeys(agents))
    raise AgentError(f"{file}: an agent is a .toml or a .py file")


def _of_toml(file: Path) -> Agent:
    """The keys are those of `Agent`, and `tools`: a list of "file.py:function"."""
    try:
        given: dict[str, Any] = tomllib.loads(file.read_text())
    except OSError as problem:
        raise AgentError(f"{file}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise AgentError(f"{file}: not valid TOML: {problem}") from None
    tools = given.pop("tools", [])
    for key in given:
        if key not in KEYS:
            raise AgentError(f"{file}: {key}: there is no such key (known: {', '.join(KEYS)}, tools)")
    _check_texts(file, given)
    try:
        agent = Agent(given.pop("name", file.stem), **given)
        for tool in tools if isinstance(tools, list) else [tools]:
            agent.tool(_function(file, tool))
    except AgentError as problem:
        raise AgentError(f"{file}: {problem}") from None
    return agent


def _check_texts(file: Path, given: dict[str, Any]) -> None:
    for key, value in given.items():
        wanted = inspect.signature(Agent).parameters[key].annotation
        kind = {"str": str, "bool": bool, "Sequence[str]": list}.get(str(wanted))
        if kind is not None and not isinstance(value, kind):
            raise AgentError(f"{file}: {key}: must be a {'list' if kind is list else kind.__name__}")


def _function(file: Path, named: Any) -> Any:
    place, _, name = str(named).rpartition(":")
    if not place:
        raise AgentError(f'tools: {named!r} must be "file.py:function"')
    function = getattr(_module(file.parent / place), name, None)
    if not callable(function):
        raise AgentError(f"tools: there is no function {name} in {place}")
    return function


def _module(file: Path) -> ModuleType:
    """Run a Python file, once a process. Raises AgentError with the line that failed."""
    name = f"bargein_agent_{file.stem}_{abs(hash(file.resolve())):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise AgentError(f"{file}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # types of the file are looked up there
    try:
        spec.loader.exec_module(module)
    except Exception as problem:  # the file is a person's own code: whatever it raises, they are told where
        del sys.modules[name]
        lines = [f.lineno for f in traceback.extract_tb(problem.__traceback__) if f.filename == str(file)]
        where = f"{file}:{lines[-1]}" if lines else str(file)
        if isinstance(problem, SyntaxError) and problem.lineno:
            where = f"{file}:{problem.lineno}"
        what = str(problem) if isinstance(problem, AgentError) else f"{type(problem).__name__}: {problem}"
        raise AgentError(f"{where}: {what}") from None
    return module
