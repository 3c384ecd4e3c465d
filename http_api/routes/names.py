"""Model names: those loaded here, and those that stock clients send, which mean the model of that job."""

from __future__ import annotations

import re

from ..errors import ApiError
from ..services import Services

# First match counts: "gpt-4o-transcribe" is no chat model.
STOCK = (
    ("stt", re.compile(r"whisper-1$|.*transcribe")),
    ("tts", re.compile(r"tts-1|.*-tts")),
    ("embed", re.compile(r"text-embedding-")),
    ("realtime", re.compile(r"gpt-(4o-)?(mini-)?realtime|gpt-realtime")),
    ("chat", re.compile(r"gpt-|chatgpt-|o[134](-|$)|claude-")),
)
JOBS = {"chat": "writes text", "stt": "transcribes", "tts": "speaks", "embed": "embeds texts", "voice": "embeds voices"}


def stock_task(name: str) -> str | None:
    """The job that a stock client's name stands for."""
    return next((task for task, pattern in STOCK if pattern.match(name)), None)


def loaded(services: Services) -> dict[str, str]:
    """Task to model, with the upstream's in place of the embedded chat model where there is one."""
    models = dict(services.engine.models)
    if services.chat_model:
        models["chat"] = services.chat_model
    return models


def resolve(services: Services, task: str, name: str) -> str:
    """The model that does `task` under this name. ApiError 404 for a name that is not known, 400 for another job's."""
    if name in services.agents.found:
        message = f"{name} is an agent: place a call to it (/v1/realtime?model={name})"
        raise ApiError(400, message, "model", "model_not_supported")
    models = loaded(services)
    if name in ("", "default", models.get(task)) or stock_task(name) == task:
        return models.get(task, "")
    if name in models.values() or stock_task(name) is not None:
        raise ApiError(400, f"the model {name[:100]!r} is not one that {JOBS[task]}", "model", "model_not_supported")
    raise ApiError(404, f"the model {name[:100]!r} does not exist here; see /v1/models", "model", "model_not_found")
