"""Puts an engine together: which lanes, on which models and device, with how many threads."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba

from bargein.kernels import cpu
from bargein.models import decoder, ge2e, hibari, minilm, silero, smart_turn, store, whisper, whisper_phones, whisper_stream
from bargein.models.decoder_gpu import PAGE, DeviceDecoder, DevicePool
from bargein.models.tokenizer import load_codec

from .core import Core
from .device import DeviceError, cache_room, choose
from .lane import Lane
from .lanes.chat import ChatLane
from .lanes.embed import EmbedLane
from .lanes.stt import SttLane
from .lanes.tts import TtsLane
from .lanes.turn import TurnLane
from .lanes.vad import VadLane
from .models_used import chosen

WORKSPACE = 1 << 30  # bytes of a GPU's budget that neither weights nor the chat cache get


class Built(NamedTuple):
    """An engine that is not started. `forks`: what it has may be shared with forked processes."""

    core: Core
    models: dict[str, str]
    forks: bool


def check_threads() -> None:
    """Workers run kernels at the same time: with OpenMP, else with TBB. Numba's fallback without either ends the process at
    that. Raises DeviceError."""
    for layer in ("omppool", "tbbpool"):
        if layer == "tbbpool":  # from PyPI it lies where the system's loader does not look
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(Path(sys.prefix) / "lib" / "libtbb.so.12"), mode=ctypes.RTLD_GLOBAL)
        try:
            importlib.import_module(f"numba.np.ufunc.{layer}")
            return
        except ImportError:
            continue
    raise DeviceError("the kernels' threads need OpenMP, which is not here: install libgomp (Debian's package is libgomp1)")


def build(
    *, stt: str = "", chat: str = "", threads: int = 0, device: str = "cpu", gpu_memory: str = "80%",
    cache_memory: str = "25%",
) -> Built:
    """Load the models. Runs no kernel on the CPU. Raises WeightsError, DeviceError."""
    check_threads()
    names = chosen(stt=stt, chat=chat)
    choice, room = choose(device, gpu_memory), cache_room(cache_memory)
    ops: Any = cpu
    if choice.gpu is not None:
        from bargein.kernels.gpu.cuda import open_gpu  # CuPy is there only where a GPU was chosen

        try:
            ops = open_gpu(choice.gpu.index, choice.budget)
        except Exception as problem:  # whatever a driver and a library that do not fit come to
            if device != "auto":
                raise DeviceError(f"{choice.name}: {type(problem).__name__}: {problem}") from problem
            choice = choose("cpu")
    folders = {task: store.path(name) for task, name in names.items()}
    return Built(assemble(folders, ops, room if ops is cpu else choice.budget, threads), names, ops is cpu)


def assemble(folders: dict[str, Path], ops: Any = cpu, budget: int = 0, threads: int = 0) -> Core:
    """The core of models that lie in these folders, by task. budget: bytes on the device of `ops`; on the CPU those of the
    chat model's caches, 0 for no limit."""
    speech = whisper.load(folders["stt"])
    turn = smart_turn.load(folders["turn"])
    voice, texts, speakers = hibari.load(folders["tts"]), minilm.load(folders["embed"]), ge2e.load(folders["voice"])
    reader = whisper_phones.reader(folders["stt"].name, speech.cfg.width, voice.pronouncer)
    placed_speech = speech._replace(w=ops.place(speech.w), q=ops.place(speech.q))
    lanes: dict[str, Lane] = {
        "stt": SttLane(placed_speech, whisper_stream.Options(), ops, reader),
        "turn": TurnLane(turn._replace(w=ops.place(turn.w), q=ops.place(turn.q)), ops),
        "tts": TtsLane(voice._replace(weights=ops.place(voice.weights)), ops),
        "embed": EmbedLane(texts._replace(w=ops.place(texts.w)), speakers._replace(w=ops.place(speakers.w)), ops),
    }
    language = decoder.load(folders["chat"])
    # Voice activity stays on the CPU: a window takes less there than its launches would, and it has its own thread.
    vad = VadLane(silero.load(folders["vad"]))
    if ops is cpu:
        lanes["chat"] = ChatLane(language, load_codec(folders["chat"]), room=budget)
        for lane in lanes.values():
            lane.prepare()
        cores = min(threads or os.cpu_count() or 1, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        return Core(lanes, vad, cores, numba.set_num_threads)
    placed = decoder.Model(language.config, ops.place(language.weights._replace(sketch=None)))
    pages = pages_for(language.config, budget - WORKSPACE - ops.num_bytes)
    lanes["chat"] = ChatLane(placed, load_codec(folders["chat"]), DeviceDecoder(ops, DevicePool(language.config, ops, pages)))
    for lane in lanes.values():
        lane.prepare()
    # One worker: steps of two would only wait for each other on the device, which a thread has to choose for itself.
    return Core(lanes, vad, 1, lambda _: ops.enter())


def pages_for(cfg: decoder.Config, num_bytes: int) -> int:
    """How many pages of the chat cache a number of bytes holds: at least one whole context. Raises DeviceError."""
    least = -(-cfg.max_positions // PAGE)
    pages = num_bytes // DevicePool.bytes_of_page(cfg)
    if pages < least:
        raise DeviceError(f"{num_bytes / 2**20:.0f} MiB are left for the chat cache; one context takes "
                          f"{least * DevicePool.bytes_of_page(cfg) / 2**20:.0f} MiB: raise --gpu-memory")  # fmt: skip
    return min(pages, 65536)


__all__ = ["assemble", "build", "pages_for"]
