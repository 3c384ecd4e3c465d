"""The ops as the CPU runs them: BLAS for large products, Numba for the memory-bound rest."""

# -- speech synthesis and chat decoding ------------------------------------------------------------------------------
from .cpu_int8 import (  # noqa: F401
    Int8Matrix,
    activation_limit,
    embedding_rows,
    linear_int8,
    pack_rows,
    quantize_activations,
    quantize_rows,
    unpack_rows,
)
from .cpu_lm import (  # noqa: F401
    add_rms_norm,
    argmax_rows,
    attend,
    gated,
    rms_norm,
    rotary_table,
    rotate_heads,
)
from .cpu_tts import (  # noqa: F401
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
