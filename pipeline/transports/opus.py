"""Opus by libopus itself (ctypes): one voice encoder, one decoder that conceals losses and uses in-band FEC.

libopus comes with PyAV's wheel, which aiortc needs anyway; else the system's is taken. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

RTP_RATE = 48000  # Opus timestamps count 48 kHz samples whatever the codec's rate
IN_RATE = 16000
OUT_RATE = 24000
FRAME = OUT_RATE // 50  # samples of a 20 ms frame
MAX_PACKET = 1275
MAX_FRAME = IN_RATE * 120 // 1000

_VOIP = 2048
_SET_BITRATE, _SET_COMPLEXITY, _SET_INBAND_FEC, _SET_PACKET_LOSS_PERC, _SET_SIGNAL = 4002, 4010, 4012, 4014, 4024
_SIGNAL_VOICE = 3001


class OpusError(Exception):
    """libopus is missing, or refused a call."""


def _library_file() -> str:
    spec = importlib.util.find_spec("av")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        for folder in (package.parent / "av.libs", package / ".dylibs"):
            for found in sorted(folder.glob("libopus[-.]*")):
                return str(found)
    name = ctypes.util.find_library("opus")
    if name is None:
        raise OpusError("libopus was not found: install PyAV's wheel (`pip install av`) or the system's libopus")
    return name


@cache
def library() -> ctypes.CDLL:
    """libopus with its argument types. Raises OpusError where there is none."""
    lib = ctypes.CDLL(_library_file())
    pointer, i32, c_int = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int
    status = ctypes.POINTER(c_int)
    for name, result, arguments in (
        ("opus_encoder_create", pointer, [i32, c_int, c_int, status]),
        ("opus_encoder_destroy", None, [pointer]),
        ("opus_encode", i32, [pointer, pointer, c_int, pointer, i32]),
        ("opus_decoder_create", pointer, [i32, c_int, status]),
        ("opus_decoder_destroy", None, [pointer]),
        ("opus_decode_float", c_int, [pointer, ctypes.c_char_p, i32, pointer, c_int, c_int]),
        ("opus_packet_get_nb_samples", c_int, [ctypes.c_char_p, i32, i32]),
        ("opus_strerror", ctypes.c_char_p, [c_int]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def _check(code: int) -> int:
    if code < 0:
        raise OpusError(library().opus_strerror(code).decode())
    return code


def packet_samples(payload: bytes) -> int:
    """How long a packet is, in 48 kHz samples; 0 where it is not an Opus packet."""
    if not payload:
        return 0
    return max(0, int(library().opus_packet_get_nb_samples(payload, len(payload), RTP_RATE)))


class Encoder:
    """24 kHz mono to Opus packets of 20 ms, tuned for voice and for a network that loses some."""

    def __init__(self, bitrate: int = 32000, complexity: int = 5, loss_percent: int = 10) -> None:
        lib, error = library(), ctypes.c_int()
        self._handle = lib.opus_encoder_create(OUT_RATE, 1, _VOIP, ctypes.byref(error))
        _check(error.value)
        for request, value in (
            (_SET_BITRATE, bitrate),
            (_SET_COMPLEXITY, complexity),
            (_SET_SIGNAL, _SIGNAL_VOICE),
            (_SET_INBAND_FEC, 1),
            (_SET_PACKET_LOSS_PERC, loss_percent),
        ):
            # opus_encoder_ctl is variadic: its fixed argument is declared, the rest is passed typed
            _check(lib.opus_encoder_ctl(ctypes.c_void_p(self._handle), ctypes.c_int(request), ctypes.c_int32(value)))
        self._out = ctypes.create_string_buffer(MAX_PACKET)

    def encode(self, pcm: bytes) -> bytes:
        """One frame: 480 samples of 16 bits; a shorter one is filled up with silence."""
        data = pcm.ljust(2 * FRAME, b"\0")
        size = _check(library().opus_encode(self._handle, data, FRAME, self._out, MAX_PACKET))
        return self._out.raw[:size]

    def close(self) -> None:
        """Free the codec's memory; nothing may be encoded after."""
        if self._handle:
            library().opus_encoder_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


class Decoder:
    """Opus packets, mono or stereo, to 16 kHz mono float32 in [-1, 1]. Durations are 48 kHz samples."""

    def __init__(self) -> None:
        error = ctypes.c_int()
        self._handle = library().opus_decoder_create(IN_RATE, 1, ctypes.byref(error))
        _check(error.value)

    def _run(self, payload: bytes | None, samples: int, fec: int) -> F32:
        out = np.empty(max(samples, 1), np.float32)
        size = 0 if payload is None else len(payload)
        got = _check(library().opus_decode_float(self._handle, payload, size, out.ctypes.data, samples, fec))
        return out[:got]

    def decode(self, payload: bytes) -> F32:
        """The packet's own audio. Raises OpusError for a damaged one."""
        return self._run(payload, MAX_FRAME, 0)

    def recover(self, following: bytes, duration: int) -> F32:
        """A lost packet, from the redundancy in the one after it (concealed where that has none)."""
        return self._run(following, duration // 3, 1)

    def conceal(self, duration: int) -> F32:
        """What probably was in a lost packet: the voice goes on and fades."""
        return self._run(None, duration // 3, 0)

    def close(self) -> None:
        """Free the codec's memory; nothing may be decoded after."""
        if self._handle:
            library().opus_decoder_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()
