"""Every op's definition in plain NumPy, float32: what each implementation is tested against."""

# -- speech synthesis and chat decoding ------------------------------------------------------------------------------
from .reference_tts import (  # noqa: F401
    bias_gelu,
    depthwise_conv_norm,
    encoder_attention,
    gaussian_rows,
    harmonic_source,
    overlap_add,
    row_norm,
    scaled_residual,
    stft_rows,
    vocoder_spectrum,
)
