"""Which models of the catalogue an engine runs, given what was asked for."""

from __future__ import annotations

from bargein.models.catalogue import catalogue
from bargein.models.errors import WeightsError

DEFAULTS = {"vad": "silero-vad", "turn": "smart-turn-v3", "stt": "whisper-base", "chat": "gemma-3-270m",
            "tts": "hibari-heart", "embed": "all-minilm-l6-v2", "voice": "ge2e"}  # fmt: skip


def chosen(*, stt: str = "", chat: str = "") -> dict[str, str]:
    """Task to model name. Raises WeightsError for a name that is not in the catalogue or is for another task."""
    used = dict(DEFAULTS)
    for task, name in (("stt", stt), ("chat", chat)):
        if name:
            entry = catalogue().get(name)
            if entry is None or entry.task != task:
                known = ", ".join(n for n, x in catalogue().items() if x.task == task)
                raise WeightsError(name, f"not a {task} model; choose one of {known}")
            used[task] = name
    return used


def needed(*, stt: str = "", chat: str = "") -> list[str]:
    """The models to have in the cache."""
    return list(chosen(stt=stt, chat=chat).values())
