"""The ops of `reference`, fast on a CPU: BLAS for the big products, Numba for the memory-bound rest."""

# ears: Silero VAD, Whisper, smart-turn
from .cpu_dense import (
    attention,
    attention_cached,
    attention_cross,
    conv1d,
    gelu,
    layer_norm,
    linear,
    log_mel_frames,
    log_softmax,
    lstm_cell,
    sigmoid,
    softmax,
)
from .cpu_top import top_log_probs
from .cpu_vad import vad_step
from .reference_ears import VadWeights, mel_filters

__all__ = [
    "VadWeights",
    "attention",
    "attention_cached",
    "attention_cross",
    "conv1d",
    "gelu",
    "layer_norm",
    "linear",
    "log_mel_frames",
    "log_softmax",
    "lstm_cell",
    "mel_filters",
    "sigmoid",
    "softmax",
    "top_log_probs",
    "vad_step",
]
