"""The table of kernels: what `build` compiles, `launch` calls and `checks` proves. Plain data, no Triton.

An argument is written name:type, a pointer with *, and ! where the kernel is compiled for a multiple of 16 (bytes of an
address, or a number): a promise that `launch.pack` checks at every call. The type W is the variant's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ARCHS = (80, 86, 89, 90)
SHARED_MAX = {80: 166912, 86: 101376, 89: 101376, 90: 232448}  # bytes a block may ask for, by architecture


@dataclass(frozen=True, slots=True)
class Variant:
    """Compile-time constants, and how many warps and pipeline stages. w: the type that W stands for."""

    constants: dict[str, int]
    warps: int = 4
    stages: int = 2
    w: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """One kernel. tolerance: relative L2 distance from float64 that a check allows. hot: it may not spill registers."""

    module: str
    signature: str
    variants: dict[str, Variant]
    tolerance: float = 1e-5
    hot: bool = False
    args: tuple[tuple[str, str, bool], ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        args = []
        for word in self.signature.split():
            name, kind = word.split(":")
            args.append((name, kind.rstrip("!"), kind.endswith("!")))
        object.__setattr__(self, "args", tuple(args))

    def typed(self, variant: str) -> tuple[tuple[str, str, bool], ...]:
        """(name, type, promised multiple of 16) of every run-time argument."""
        w = self.variants[variant].w
        return tuple((name, kind.replace("W", w), whole) for name, kind, whole in self.args)


def _blocks(names: str, key: str = "MODE", first: int = 0, block: int = 1024) -> dict[str, Variant]:
    return {name: Variant({key: first + i, "BLOCK": block}) for i, name in enumerate(names.split())}


_WEIGHTS = {"int8": (0, "i8"), "fp16": (1, "fp16"), "bf16": (2, "bf16")}
_POOLS = {"fp32": (0, "fp32"), "fp16": (1, "fp16"), "bf16": (2, "bf16"), "e4m3": (3, "u8")}
_TILES = {"few": (16, 32, 128, 4, 3), "mid": (64, 64, 64, 4, 3), "many": (128, 64, 64, 8, 3)}  # BM, BN, BK, warps, stages
_GROUPS = {"4g32": (4, 32), "4g64": (4, 64), "4g128": (4, 128), "6g16": (6, 16), "8g32": (8, 32)}
HEADS = (64, 128, 256)  # sizes that heads are padded to


def _linear() -> dict[str, Variant]:
    return {
        f"{kind}_{size}": Variant({"KIND": number, "BM": bm, "BN": bn, "BK": bk}, warps, stages, w)
        for kind, (number, w) in _WEIGHTS.items()
        for size, (bm, bn, bk, warps, stages) in _TILES.items()
    }


def _grouped() -> dict[str, Variant]:
    return {
        f"{kind}_{size}": Variant(
            {"BITS": bits, "GROUP": group, "BM": bm, "BN": 32, "BK": 128 if bm == 16 else 64}, 4, 2, "i8" if bits == 8 else "u8"
        )
        for kind, (bits, group) in _GROUPS.items()
        for size, bm in (("few", 16), ("mid", 64))
    }


def _decode() -> dict[str, Variant]:
    return {
        f"{kind}_{d}": Variant({"KIND": number, "R": 16, "D": d, "BN": 64 >> ((number == 0) + (d == 256))}, 4, 2, w)
        for kind, (number, w) in _POOLS.items()
        for d in HEADS
    }


def _prefill() -> dict[str, Variant]:
    return {
        f"{kind}_{d}": Variant(
            {"KIND": number, "D": d, "BM": 16 if number == 0 else 64, "BN": 64 if number and d == 64 else 32},
            8 if d == 256 else 4, 2, w,
        )
        for kind, (number, w) in _POOLS.items()
        for d in HEADS
    }  # fmt: skip


_FLAT = {"b1024": Variant({"BLOCK": 1024})}
_TOP = {"b2048": Variant({"BLOCK": 2048}, 8)}
_HALF_FLAT = {"b512": Variant({"BLOCK": 512})}

SPECS: dict[str, Spec] = {
    # -- dense
    "prepare_rows": Spec(
        "dense", "x_ptr:*fp32! norm_ptr:*fp32! bias_ptr:*fp32! q_ptr:*fp16! scale_ptr:*fp32 C:i32 K:i32! eps:fp32",
        _blocks("plain rms silu gelu layer"), 5e-4, True,
    ),
    "norm_rows": Spec(
        "dense", "x_ptr:*fp32! skip_ptr:*fp32! weight_ptr:*fp32! bias_ptr:*fp32! out_ptr:*fp32! C:i32 eps:fp32 "
        "has_bias:i32 has_skip:i32", _blocks("rms layer", "CENTRED"), 1e-5, True,
    ),
    "gated_rows": Spec("dense", "x_ptr:*fp32! out_ptr:*fp32! C:i32", _blocks("silu gelu", first=2), 1e-5, True),
    "linear_rows": Spec(
        "dense", "q_ptr:*fp16! qs_ptr:*fp32 w_ptr:*W! ws_ptr:*fp32 bias_ptr:*fp32 y_ptr:*fp32! M:i32 N:i32 K:i32! "
        "has_bias:i32 add:i32", _linear(), 5e-4, True,
    ),
    "linear_grouped": Spec(
        "dense", "q_ptr:*fp16! qs_ptr:*fp32 w_ptr:*W! top_ptr:*u8! s_ptr:*fp16! z_ptr:*fp16! bias_ptr:*fp32 y_ptr:*fp32! "
        "M:i32 N:i32 K:i32! has_bias:i32 add:i32", _grouped(), 1e-3, True,
    ),
    "embed_rows": Spec(
        "dense", "ids_ptr:*i64 w_ptr:*W! ws_ptr:*fp32 out_ptr:*fp32! C:i32 K:i32! factor:fp32",
        {kind: Variant({"KIND": number, "BLOCK": 512}, w=w) for kind, (number, w) in _WEIGHTS.items()}, 1e-6,
    ),
    "embed_grouped": Spec(
        "dense", "ids_ptr:*i64 w_ptr:*W! top_ptr:*u8! s_ptr:*fp16! z_ptr:*fp16! out_ptr:*fp32! C:i32 K:i32! factor:fp32",
        {k: Variant({"BITS": b, "GROUP": g, "BLOCK": 512}, w="i8" if b == 8 else "u8") for k, (b, g) in _GROUPS.items()}, 1e-6,
    ),
    # -- attention
    "rotary_paged": Spec(
        "attend", "x_ptr:*fp32! table_ptr:*fp32! position_ptr:*i64 slot_ptr:*i64 qn_ptr:*fp32 kn_ptr:*fp32 ref_ptr:*fp32 "
        "q_ptr:*fp32! k_ptr:*W! v_ptr:*W! H:i32 G:i32 d:i32! eps:fp32 has_norm:i32 has_ref:i32",
        {kind: Variant({"KIND": number, "HALF": 128}, 1, 2, w) for kind, (number, w) in _POOLS.items()}, 1e-5, True,
    ),
    "paged_decode": Spec(
        "attend", "q_ptr:*fp32! k_ptr:*W! v_ptr:*W! table_ptr:*i32 len_ptr:*i32 part_ptr:*fp32! ml_ptr:*fp32 H:i32 G:i32 "
        "d:i32! P:i32 page:i32 window:i32 chunk:i32 scale:fp32", _decode(), 1e-3, True,
    ),
    "paged_combine": Spec(
        "attend", "part_ptr:*fp32! ml_ptr:*fp32 out_ptr:*fp32! S:i32 d:i32!", {"256": Variant({"D": 256})}, 1e-5, True
    ),
    "paged_prefill": Spec(
        "attend", "q_ptr:*fp32! k_ptr:*W! v_ptr:*W! table_ptr:*i32 start_ptr:*i32 len_ptr:*i32 out_ptr:*fp32! H:i32 G:i32 "
        "d:i32! P:i32 page:i32 window:i32 scale:fp32", _prefill(), 1e-3,
    ),
    "full_attention": Spec(
        "attend", "q_ptr:*fp32 k_ptr:*fp32 v_ptr:*fp32 out_ptr:*fp32 TQ:i32 TK:i32 d:i32 q_row:i32 q_head:i32 k_row:i32 "
        "k_head:i32 scale:fp32",
        {str(d): Variant({"D": d, "BM": 64, "BN": 32}, 4 if d == 32 else 8) for d in (32, 64, 128)}, 1e-3,
    ),
    # -- sound
    "conv1d_rows": Spec(
        "sound", "x_ptr:*fp32 w_ptr:*fp32 b_ptr:*fp32 y_ptr:*fp32 T:i32 C:i32 O:i32 TO:i32 stride:i32 padding:i32 has_bias:i32 "
        "relu:i32", {f"k{taps}": Variant({"TAPS": taps, "BM": 16, "BN": 32, "BC": 32}) for taps in (1, 3, 7)}, 1e-5,
    ),
    "depthwise_norm": Spec(
        "sound", "x_ptr:*fp32 w_ptr:*fp32 b_ptr:*fp32 gamma_ptr:*fp32 beta_ptr:*fp32 y_ptr:*fp32 C:i32 dilation:i32 eps:fp32",
        {f"k{taps}": Variant({"TAPS": taps, "BLOCK": 256}) for taps in (5, 7)}, 1e-5,
    ),
    "lstm_step": Spec(
        "sound", "x_ptr:*fp32 h_ptr:*fp32 c_ptr:*fp32 wi_ptr:*fp32 wh_ptr:*fp32 b_ptr:*fp32 h_out_ptr:*fp32 c_out_ptr:*fp32 "
        "n:i32 I:i32 H:i32", {"s16": Variant({"BS": 16, "BH": 16, "BK": 32})}, 1e-5, True,
    ),
    "log_mel": Spec(
        "sound", "x_ptr:*fp32 basis_ptr:*fp32 filter_ptr:*fp32 y_ptr:*fp32 T:i32 hop:i32 N:i32 F:i32 MELS:i32 log:i32",
        {"m128": Variant({"BM": 16, "BK": 32, "BF": 16, "BMEL": 128})}, 1e-5,
    ),
    "frame_products": Spec(
        "sound", "x_ptr:*fp32 basis_ptr:*fp32 y_ptr:*fp32 T:i32 step:i32 N:i32 F:i32",
        {"b32": Variant({"BM": 16, "BK": 32, "BF": 32})}, 1e-5,
    ),
    "overlap_frames": Spec("sound", "frame_ptr:*fp32 tail_ptr:*fp32 out_ptr:*fp32 T:i32 N:i32 hop:i32 length:i32", _FLAT),
    "frame_turns": Spec("sound", "f0_ptr:*fp32 turn_ptr:*fp64 F:i32 hop:i32 rate:fp32 floor:fp32", _HALF_FLAT),
    "harmonic_source": Spec(
        "sound", "f0_ptr:*fp32 turn_ptr:*fp64 out_ptr:*fp32 F:i32 hop:i32 rate:fp32 floor:fp32 top:fp32",
        {"h512": Variant({"HOP": 512, "BLOCK": 512})}, 2e-3,
    ),
    "gaussian_rows": Spec("sound", "out_ptr:*fp32 seed:i32 first:i32 bins:i32", _HALF_FLAT),
    "vocoder_mix": Spec(
        "sound", "head_ptr:*fp32 source_ptr:*fp32 noise_ptr:*fp32 out_ptr:*fp32 B:i32 limit:fp32", _HALF_FLAT
    ),
    # -- rows
    "bias_gelu": Spec("rows", "x_ptr:*fp32! b_ptr:*fp32 y_ptr:*fp32! size:i32 C:i32 has_bias:i32", _FLAT),
    "scaled_residual": Spec("rows", "skip_ptr:*fp32 x_ptr:*fp32! b_ptr:*fp32 s_ptr:*fp32 y_ptr:*fp32! size:i32 C:i32", _FLAT),
    "softmax_rows": Spec("rows", "x_ptr:*fp32 y_ptr:*fp32 C:i32", _blocks("plain log", "LOG")),
    "top_rows": Spec("rows", "x_ptr:*fp32 value_ptr:*fp32 id_ptr:*i64 C:i32 k:i32 log:i32", _TOP),
    "vocab_maxima": Spec("rows", "x_ptr:*fp32 max_ptr:*fp32 C:i32", {"b1024": Variant({"BLOCK": 1024})}),
    "vocab_candidates": Spec(
        "rows", "x_ptr:*fp32 max_ptr:*fp32 reach_ptr:*fp32 count_ptr:*i32 value_ptr:*fp32 id_ptr:*i32 C:i32 room:i32",
        {"b1024": Variant({"BLOCK": 1024, "MAXIMA": 512})},
    ),
    "sample_candidates": Spec(
        "rows", "value_ptr:*fp32 id_ptr:*i32 count_ptr:*i32 heat_ptr:*fp32 topk_ptr:*i32 topp_ptr:*fp32 minp_ptr:*fp32 "
        "uniform_ptr:*fp32 token_ptr:*i64 room:i32", {"b1024": Variant({"BLOCK": 1024})},
    ),
    "gather_state": Spec("rows", "state_ptr:*fp32 slot_ptr:*i64 reset_ptr:*i32 out_ptr:*fp32 C:i32", _HALF_FLAT, 0.0),
    "scatter_state": Spec("rows", "x_ptr:*fp32 slot_ptr:*i64 run_ptr:*i32 state_ptr:*fp32 C:i32", _HALF_FLAT, 0.0),
}  # fmt: skip
