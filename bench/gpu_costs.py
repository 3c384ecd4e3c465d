"""Predicts what steps cost on an H200-class GPU, from the bytes and operations of each: nothing here was measured.

    python bench/gpu_costs.py          writes bench/gpu_costs.json, the table of bench/GPU_COSTS.md, and in
                                       bench/costs_h200.json what each more stream adds to a step

A step takes the longer of its bytes at `memory_share` of the memory's rate and its operations at `math_share` of the
tensor cores', plus `launch_us` for every kernel it starts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Chip:
    """Rates as the maker states them, and the shares of them that are assumed."""

    name: str = "H200"
    bytes_s: float = 4.8e12
    flops_s: float = 989e12  # fp16, dense
    fp32_flops_s: float = 67e12
    memory_share: float = 0.6
    math_share: float = 0.4
    launch_us: float = 8.0  # through Python and CuPy; a CUDA graph would take about 2


@dataclass(frozen=True, slots=True)
class Decoder:
    """What of a language model its steps' costs depend on; bits: of a weight, scales included."""

    name: str
    weights: float  # that every token reads: all but the embedding table
    layers: int
    kv_width: int  # kv_heads * head_size
    bits: float
    launches: int  # a layer's


DECODERS = (
    Decoder("Gemma 3 270M, int8", 268e6, 18, 256, 8.0, 12),
    Decoder("Llama 3.1 8B, bf16", 7.5e9, 32, 1024, 16.0, 9),
    Decoder("Llama 3.1 8B, int8", 7.5e9, 32, 1024, 8.0, 9),
    Decoder("Llama 3.1 8B, AWQ 4 bits", 7.5e9, 32, 1024, 4.25, 9),
)
# name: (bytes, fp16 operations, fp32 operations, launches)
STEPS = {
    "Whisper base: 30 s encoded": (2 * 20e6, 2 * 20e6 * 1500 + 4 * 6 * 1500 * 1500 * 512, 1.2e9, 6 * 12 + 8),
    "Whisper base: a token of a beam of 5": (52e6 + 6 * 2 * 1500 * 512 * 4 * 5, 2 * 52e6 * 5, 0.0, 6 * 20 + 4),
    "smart-turn: 8 s": (8e6, 2 * 8e6 * 400, 0.3e9, 4 * 10 + 20),
    "hibari: a chunk of 48 frames": (8e6 + 2 * 1201 * 1202 * 4, 2 * 6e6 * 48, 2 * 2 * 48 * 1201 * 1202, 8 * 6 + 14),
}


WEIGHT_BYTES = {
    "Whisper base: 30 s encoded": 2 * 20e6, "Whisper base: a token of a beam of 5": 52e6,
    "smart-turn: 8 s": 8e6, "hibari: a chunk of 48 frames": 8e6 + 2 * 1201 * 1202 * 4,
}  # fmt: skip


def microseconds(chip: Chip, num_bytes: float, fp16: float, fp32: float, launches: int) -> float:
    """The prediction."""
    memory = num_bytes / (chip.bytes_s * chip.memory_share)
    math = fp16 / (chip.flops_s * chip.math_share) + fp32 / (chip.fp32_flops_s * chip.math_share)
    return 1e6 * max(memory, math) + launches * chip.launch_us


def decode(chip: Chip, d: Decoder, batch: int, context: int) -> float:
    """One token for each of `batch` sequences of `context` tokens, an fp16 cache."""
    cache = batch * context * 2 * d.layers * d.kv_width * 2
    return microseconds(chip, d.weights * d.bits / 8 + cache, 2 * d.weights * batch, 0.0, d.layers * d.launches + 4)


def prefill(chip: Chip, d: Decoder, tokens: int) -> float:
    return microseconds(chip, d.weights * d.bits / 8, 2 * d.weights * tokens, 0.0, d.layers * d.launches + 4)


def adds(chip: Chip) -> dict[str, float]:
    """Work of bench/costs_h200.json -> the share of a step's time that each more stream in the same launches adds: its own
    operations and activations, where launches and weights are paid once."""
    share = {}
    for name, (num_bytes, fp16, fp32, launches) in STEPS.items():
        own = microseconds(chip, num_bytes - WEIGHT_BYTES[name], fp16, fp32, 0)
        share[name] = own / microseconds(chip, num_bytes, fp16, fp32, launches)
    encode, token, turn, say = (share[name] for name in STEPS)
    gemma = DECODERS[0]
    read = microseconds(chip, 0.0, 2 * gemma.weights * 64, 0.0, 0) / prefill(chip, gemma, 64)
    words = {"partial": 0.87, "final": 0.93}  # of such a step's time are the decoder's; the rest is the encoder's
    heard = {name: part * token + (1 - part) * encode for name, part in words.items()}
    return heard | {"turn": turn, "judge": read, "read": read, "say": say}


def table(chip: Chip) -> dict[str, float]:
    """Step -> predicted microseconds."""
    out: dict[str, float] = {}
    for d in DECODERS:
        for batch in (1, 16, 64):
            out[f"{d.name}: a token for {batch} at 1,000 tokens of context"] = decode(chip, d, batch, 1000)
        out[f"{d.name}: 512 tokens read"] = prefill(chip, d, 512)
    return out | {name: microseconds(chip, *parts) for name, parts in STEPS.items()}


def main() -> None:
    chip = Chip()
    costs = {name: round(value) for name, value in table(chip).items()}
    told = {"what": "predictions, not measurements", "chip": asdict(chip), "microseconds": costs}
    (HERE / "gpu_costs.json").write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    steps = json.loads((HERE / "costs_h200.json").read_text("utf-8"))
    steps["grow"] = {name: round(share, 3) for name, share in adds(chip).items()}
    (HERE / "costs_h200.json").write_text(json.dumps(steps, indent=1) + "\n", "utf-8")
    lines = ["# What a step should cost on an H200", "", "**Predictions until measured.** No GPU has run this project yet. "
             f"`gpu_costs.py` derives them: bytes at {chip.memory_share:.0%} of {chip.bytes_s / 1e12} TB/s, fp16 operations at "
             f"{chip.math_share:.0%} of {chip.flops_s / 1e12:.0f} TFLOP/s, {chip.launch_us:.0f} µs a launch from Python; small "
             "models are all launches.", "", "| step | ms |", "|---|---|"]  # fmt: skip
    lines += [f"| {name} | {value / 1000:.2f} |" for name, value in costs.items()]
    (HERE / "GPU_COSTS.md").write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
