"""Puts an engine together: which lanes, on which models, with how many threads."""

from __future__ import annotations

import os

import numba

from bargein.models import decoder, ge2e, hibari, minilm, silero, smart_turn, store, whisper, whisper_stream
from bargein.models.tokenizer import load_codec

from .core import Core
from .lane import Lane
from .lanes.chat import ChatLane
from .lanes.embed import EmbedLane
from .lanes.stt import SttLane
from .lanes.tts import TtsLane
from .lanes.turn import TurnLane
from .lanes.vad import VadLane
from .models_used import chosen


def build(*, stt: str = "", chat: str = "", threads: int = 0) -> tuple[Core, dict[str, str]]:
    """Load the models and return the core (not started) with the names used. Raises WeightsError."""
    names = chosen(stt=stt, chat=chat)
    folders = {task: store.path(name) for task, name in names.items()}
    speech = whisper.load(folders["stt"])
    lanes: dict[str, Lane] = {
        "stt": SttLane(speech, whisper_stream.Options()),
        "turn": TurnLane(smart_turn.load(folders["turn"])),
        "chat": ChatLane(decoder.load(folders["chat"]), load_codec(folders["chat"])),
        "tts": TtsLane(hibari.load(folders["tts"])),
        "embed": EmbedLane(minilm.load(folders["embed"]), ge2e.load(folders["voice"])),
    }
    cores = min(threads or os.cpu_count() or 1, numba.get_num_threads())
    return Core(lanes, VadLane(silero.load(folders["vad"])), cores, numba.set_num_threads), names
