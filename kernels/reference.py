"""The definition of every op, in NumPy, float32. `cpu` has the same names and signatures, fast."""

from .host import contiguous, empty, enter, place, product, to_device, to_host, zeros  # noqa: F401

# ears: Silero VAD, Whisper, smart-turn
from .reference_ears import (  # noqa: F401
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
    windows,
)

# -- speech synthesis and chat decoding ------------------------------------------------------------------------------
from .reference_int8 import (  # noqa: F401
    Int8Matrix,
    activation_limit,
    embedding_rows,
    linear_int8,
    pack_rows,
    quantize_activations,
    quantize_rows,
    unpack_rows,
)
from .reference_lm import (  # noqa: F401
    Caches,
    Places,
    add_rms_norm,
    argmax_rows,
    attend,
    attend_pages,
    gated,
    gated_linear_residual,
    linear_residual,
    norm_linear,
    rms_norm,
    rotary_table,
    rotate_heads,
    rotate_qkv,
)
from .reference_sketch import Sketch, head_top, sketch_of, sketch_scores  # noqa: F401
from .reference_tts import (  # noqa: F401
    ConvBlock,
    EncoderLayer,
    bias_gelu,
    conv_block,
    conv_stack,
    depthwise_conv_norm,
    encoder_attention,
    encoder_layer,
    gaussian_rows,
    harmonic_source,
    overlap_add,
    row_norm,
    scaled_residual,
    spread_conv,
    stft_rows,
    vocoder_spectrum,
)
