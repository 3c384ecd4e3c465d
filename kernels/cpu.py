"""The ops of `reference`, fast on a CPU: BLAS for the big products, Numba for the memory-bound rest."""

# ears: Silero VAD, Whisper, smart-turn
from .cpu_attention import attention  # noqa: F401
from .cpu_block import conv_block, conv_stack, encoder_layer  # noqa: F401
from .cpu_dense import (  # noqa: F401
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
    windows,
)

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
    gated,
    gated_linear_residual,
    linear_residual,
    norm_linear,
    rms_norm,
    rotary_table,
    rotate_heads,
    rotate_qkv,
)
from .cpu_pages import attend_pages  # noqa: F401
from .cpu_sketch import Sketch, head_top, sketch_of, sketch_scores  # noqa: F401
from .cpu_top import top_log_probs  # noqa: F401
from .cpu_tts import (  # noqa: F401
    bias_gelu,
    depthwise_conv_norm,
    encoder_attention,
    gaussian_rows,
    harmonic_source,
    overlap_add,
    row_norm,
    scaled_residual,
    spread_conv,
    stft_rows,
    vocoder_spectrum,
)
from .cpu_vad import vad_step  # noqa: F401
from .host import contiguous, empty, enter, place, product, to_device, to_host, zeros  # noqa: F401
from .reference_ears import VadWeights, mel_filters  # noqa: F401
from .reference_lm import Caches, Places  # noqa: F401
from .reference_tts import ConvBlock, EncoderLayer  # noqa: F401
