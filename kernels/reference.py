"""The definition of every op, in NumPy, float32. `cpu` has the same names and signatures, fast."""

# ears: Silero VAD, Whisper, smart-turn
from .reference_ears import (
    VadWeights,
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
    mel_filters,
    sigmoid,
    softmax,
    top_log_probs,
    vad_step,
)

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
