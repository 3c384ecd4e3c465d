"""Silero VAD v6 at 16 kHz: how likely each 32 ms of sound holds speech, for many sessions in one call.

Owns the graph's weights and the state carried between windows; the maths is `kernels` (`vad_step`). It refuses to
know thresholds, hangover or turns. Source: silero-vad 6.2.3's 16 kHz checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bargein.kernels import cpu

from .weights_io import read_config, read_tensors

F32 = NDArray[np.float32]

SAMPLE_RATE = 16000
WINDOW = 512  # new samples a step
CONTEXT = 64  # samples of the step before, in front of them
HIDDEN = 128

_SHAPES = {
    "stft_conv.weight": (258, 1, 256),
    "conv1.weight": (128, 129, 3),
    "conv1.bias": (128,),
    "conv2.weight": (64, 128, 3),
    "conv2.bias": (64,),
    "conv3.weight": (64, 64, 3),
    "conv3.bias": (64,),
    "conv4.weight": (128, 64, 3),
    "conv4.bias": (128,),
    "lstm_cell.weight_ih": (512, 128),
    "lstm_cell.weight_hh": (512, 128),
    "lstm_cell.bias_ih": (512,),
    "lstm_cell.bias_hh": (512,),
    "final_conv.weight": (1, 128, 1),
    "final_conv.bias": (1,),
}


class State(NamedTuple):
    """What a session carries from window to window; n sessions are n rows."""

    h: F32  # [n, 128] LSTM output
    c: F32  # [n, 128] LSTM cell
    context: F32  # [n, 64] last samples heard


def load(folder: Path) -> cpu.VadWeights:
    """Read a converted folder. Raises WeightsError when a tensor is missing, unknown or misshapen."""
    read_config(folder)
    t = read_tensors(folder, _SHAPES)

    def conv(name: str) -> F32:  # torch's [O, C, k] to time-first [O, k, C]
        return np.ascontiguousarray(t[f"{name}.weight"].transpose(0, 2, 1))

    return cpu.VadWeights(
        basis=t["stft_conv.weight"][:, 0],
        conv1_w=conv("conv1"),
        conv1_b=t["conv1.bias"],
        conv2_w=conv("conv2"),
        conv2_b=t["conv2.bias"],
        conv3_w=conv("conv3"),
        conv3_b=t["conv3.bias"],
        conv4_w=conv("conv4"),
        conv4_b=t["conv4.bias"],
        lstm_w=np.concatenate([t["lstm_cell.weight_ih"], t["lstm_cell.weight_hh"]], axis=1),
        lstm_b=t["lstm_cell.bias_ih"] + t["lstm_cell.bias_hh"],
        out_w=t["final_conv.weight"].reshape(HIDDEN),
        out_b=t["final_conv.bias"],
    )


def init_state(n: int) -> State:
    """The state of n sessions before their first window: silence."""
    return State(*(np.zeros((n, width), np.float32) for width in (HIDDEN, HIDDEN, CONTEXT)))


def step(w: cpu.VadWeights, state: State, x: F32, ops: ModuleType = cpu) -> tuple[F32, State]:
    """Speech probability of the next window of each session.

    x float32 [n, 512], samples in [-1, 1] at 16 kHz. Returns (prob float32 [n], the next state). Row i depends on
    session i only, bit for bit.
    """
    window = np.concatenate([state.context, x], axis=1)  # [n, 576]
    prob, h, c = (ops.to_host(a) for a in ops.vad_step(w, window, state.h, state.c))
    return prob, State(h, c, window[:, -CONTEXT:])
