"""Whisper (Radford et al. 2022): log-mel front end, encoder, decoder with a KV cache, as functions over weights.

Owns the graph. It refuses to know how tokens are chosen (whisper_decode) or when to listen (whisper_stream).
Checkpoints: tiny.en and base as converted for CTranslate2, whose names the weights keep: in each block `linear_0` of
self-attention is q, k, v stacked, `linear_1` its output; in cross-attention `linear_0` is q, `linear_1` k and v
stacked, `linear_2` the output; the head is the token embedding, transposed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bargein.kernels import cpu
from bargein.kernels.cpu import Int8Matrix

from .errors import WeightsError
from .weights_io import read_config, read_tensors

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

SAMPLE_RATE = 16000
N_FFT = 400
HOP = 160  # 10 ms a mel frame; two frames an encoder position
WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Config:
    """Hyperparameters, read from the checkpoint."""

    width: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    mels: int
    audio_positions: int  # 1500: 30 s
    text_positions: int  # 448
    vocab: int
    suppress: tuple[int, ...]  # never written: symbols that aren't speech
    suppress_begin: tuple[int, ...]  # not written first: a blank, the end
    alignment_heads: tuple[tuple[int, int], ...]  # (layer, head) whose cross-attention follows the sound

    @property
    def scale(self) -> float:
        """Attention's factor on q . k."""
        return float((self.width // self.heads) ** -0.5)


class Special(NamedTuple):
    """The control tokens of a tokenizer."""

    eot: int
    sot: int
    transcribe: int
    translate: int
    sot_prev: int
    no_speech: int
    no_timestamps: int
    timestamp_begin: int  # <|0.00|>; each following token is 0.02 s later
    languages: dict[str, int]  # "en" -> token; empty for an English-only model


class Model(NamedTuple):
    """A loaded checkpoint."""

    cfg: Config
    w: dict[str, F32]  # every tensor that isn't in `q`
    q: dict[str, Int8Matrix]  # weights of linear layers rounded to int8
    tokenizer: Tokenizer
    special: Special


class Cross(NamedTuple):
    """An encoded sound as the decoder sees it: keys and values [heads, T, head_dim], one pair a decoder layer.

    encoded: what they were made of, [T, width].
    """

    k: tuple[F32, ...]
    v: tuple[F32, ...]
    encoded: F32


class Cache(NamedTuple):
    """Self-attention keys and values of B hypotheses: [B, S, width] a decoder layer. Only written in place."""

    k: tuple[F32, ...]
    v: tuple[F32, ...]


_HEAD = "decoder/embeddings/weight"

# --- loading ---------------------------------------------------------------------------------------------------------


def _shapes(c: Config) -> dict[str, tuple[int, ...]]:
    d = c.width
    out: dict[str, tuple[int, ...]] = {
        "encoder/conv1/weight": (d, c.mels, 3),
        "encoder/conv1/bias": (d,),
        "encoder/conv2/weight": (d, d, 3),
        "encoder/conv2/bias": (d,),
        "encoder/position_encodings/encodings": (c.audio_positions, d),
        "decoder/position_encodings/encodings": (c.text_positions, d),
        "decoder/embeddings/weight": (c.vocab, d),
    }

    def linear(name: str, rows: int, cols: int) -> None:
        out[f"{name}/weight"], out[f"{name}/bias"] = (rows, cols), (rows,)

    def norm(name: str) -> None:
        out[f"{name}/gamma"] = out[f"{name}/beta"] = (d,)

    for side, layers in (("encoder", c.encoder_layers), ("decoder", c.decoder_layers)):
        norm(f"{side}/layer_norm")
        for i in range(layers):
            p = f"{side}/layer_{i}"
            norm(f"{p}/self_attention/layer_norm")
            linear(f"{p}/self_attention/linear_0", 3 * d, d)
            linear(f"{p}/self_attention/linear_1", d, d)
            norm(f"{p}/ffn/layer_norm")
            linear(f"{p}/ffn/linear_0", 4 * d, d)
            linear(f"{p}/ffn/linear_1", d, 4 * d)
            if side == "decoder":
                norm(f"{p}/attention/layer_norm")
                linear(f"{p}/attention/linear_0", d, d)
                linear(f"{p}/attention/linear_1", 2 * d, d)
                linear(f"{p}/attention/linear_2", d, d)
    return out


def _special(tokenizer: Tokenizer, path: Path) -> Special:
    def need(*names: str) -> int:
        for name in names:
            token = tokenizer.token_to_id(name)
            if token is not None:
                return int(token)
        raise WeightsError(path, f"has no token {names[0]}; delete the folder and run `bargein models pull`")

    sot, transcribe, translate = need("<|startoftranscript|>"), need("<|transcribe|>"), need("<|translate|>")
    languages: dict[str, int] = {}
    if sot != need("<|endoftext|>"):
        for token in range(sot + 1, min(transcribe, translate)):
            name = tokenizer.id_to_token(token) or ""
            if name.startswith("<|") and name.endswith("|>") and len(name) <= 7:
                languages[name[2:-2]] = token
    no_timestamps = need("<|notimestamps|>")
    return Special(
        eot=need("<|endoftext|>"),
        sot=sot,
        transcribe=transcribe,
        translate=translate,
        sot_prev=need("<|startofprev|>"),
        no_speech=need("<|nospeech|>", "<|nocaptions|>"),
        no_timestamps=no_timestamps,
        timestamp_begin=no_timestamps + 1,
        languages=languages,
    )


def load(folder: Path, int8: tuple[str, ...] = ("encoder", "decoder")) -> Model:
    """Read a converted folder. Raises WeightsError naming what's missing, unknown or misshapen.

    int8 names the halves ("encoder", "decoder") whose products are rounded to int8 with a scale an output; () keeps
    every weight in float32. A decoder step is bounded by the bytes of its weights, so int8 is four times faster; an
    encoder is 1.6 times faster, and stays off BLAS, whose threads stall when cores are contended.
    """
    raw = read_config(folder)
    try:
        cfg = Config(
            **{
                **{k: v for k, v in raw.items() if k != "model"},
                "suppress": tuple(raw["suppress"]),
                "suppress_begin": tuple(raw["suppress_begin"]),
                "alignment_heads": tuple((int(a), int(b)) for a, b in raw["alignment_heads"]),
            }
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise WeightsError(folder / "config.json", f"not a Whisper configuration ({problem}); convert anew") from None
    w = read_tensors(folder, _shapes(cfg))
    for name in ("encoder/conv1", "encoder/conv2"):  # [O, C, k] to a linear layer over windows, [O, k * C]
        weight = w.pop(f"{name}/weight").transpose(0, 2, 1)
        w[f"{name}/linear_0/weight"] = np.ascontiguousarray(weight.reshape(cfg.width, -1))
        w[f"{name}/linear_0/bias"] = w.pop(f"{name}/bias")
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as problem:  # the tokenizers library raises bare Exception
        raise WeightsError(path, f"unreadable ({problem}); delete the folder and run `bargein models pull`") from None
    special = _special(tokenizer, path)
    # English-only files number their language and task tokens without holding languages; the vocabulary tells.
    q: dict[str, Int8Matrix] = {}
    for name in [n for n in w if n.split("/")[0] in int8 and "/linear_" in n and n.endswith("/weight")]:
        q[name] = cpu.pack_rows(*cpu.quantize_rows(w.pop(name)))
    if "decoder" in int8:  # the table stays beside the rounded head: looking up a token reads one row
        q[_HEAD] = cpu.pack_rows(*cpu.quantize_rows(w[_HEAD]))
    return Model(cfg, w, q, tokenizer, special if cfg.vocab >= 51865 else special._replace(languages={}))


# --- front end -------------------------------------------------------------------------------------------------------

_FILTERS: dict[int, F32] = {}


def filters(mels: int) -> F32:
    """The mel filters [mels, 201], computed once."""
    if mels not in _FILTERS:
        _FILTERS[mels] = cpu.mel_filters(SAMPLE_RATE, N_FFT, mels)
    return _FILTERS[mels]


def scale_log_mel(frames: F32) -> F32:
    """Whisper's compression of log10 mel power: at most 8 decades below the loudest, then (x + 4) / 4. [T, mels]."""
    return (np.maximum(frames, frames.max() - np.float32(8.0)) + np.float32(4.0)) / np.float32(4.0)


def log_mel(audio: F32, num_frames: int, mels: int = 80, ops: ModuleType = cpu) -> F32:
    """Log-mel features [num_frames, mels] of float32 audio [n] at 16 kHz, followed by silence up to num_frames * 10 ms.

    Frames are centred: half a window is reflected in front (the original's `center=True`).
    """
    sound = np.zeros(num_frames * HOP, np.float32)
    n = min(len(audio), len(sound))
    sound[:n] = audio[:n]
    padded = np.pad(sound, N_FFT // 2, mode="reflect")
    return scale_log_mel(ops.log_mel_frames(padded, filters(mels), N_FFT, HOP)[:num_frames])


# --- encoder ---------------------------------------------------------------------------------------------------------


_ROWS = 256  # positions a step of the encoder handles: a few milliseconds on two cores


def encoder_steps(m: Model, mel: F32, ops: ModuleType = cpu) -> Generator[None, None, F32]:
    """`encode`, yielding between bounded pieces of work; the generator's return value is the result."""
    c, w, d = m.cfg, m.w, m.cfg.width
    x = ops.gelu(_linear(m, "encoder/conv1/linear_0", ops.windows(mel, 3, 1, 1), ops))  # [T, D]
    yield
    x = ops.gelu(_linear(m, "encoder/conv2/linear_0", ops.windows(x, 3, 2, 1), ops))  # [T / 2, D]
    x += w["encoder/position_encodings/encodings"][: x.shape[0]]
    blocks = [slice(start, start + _ROWS) for start in range(0, x.shape[0], _ROWS)]
    qkv, mixed = ops.empty((x.shape[0], 3 * d)), ops.empty(x.shape)
    head = d // c.heads
    for i in range(c.encoder_layers):
        p = f"encoder/layer_{i}/self_attention"
        for rows in blocks:
            yield
            qkv[rows] = _linear(m, f"{p}/linear_0", _norm(m, f"{p}/layer_norm", x[rows], ops), ops)
        group = max(1, _ROWS * c.audio_positions // x.shape[0] ** 2)  # heads whose scores are a step's work
        for first in range(0, c.heads, group):
            yield
            count = min(group, c.heads - first)
            at = slice(first * head, (first + count) * head)
            q, k, v = qkv[:, :d][:, at], qkv[:, d : 2 * d][:, at], qkv[:, 2 * d :][:, at]
            mixed[:, at] = ops.attention(q, k, v, count, c.scale)
        for rows in blocks:
            yield
            x[rows] += _linear(m, f"{p}/linear_1", mixed[rows], ops)
            x[rows] += _ffn(m, f"encoder/layer_{i}/ffn", x[rows], ops)
    return _norm(m, "encoder/layer_norm", x, ops)


def _norm(m: Model, name: str, x: F32, ops: ModuleType) -> F32:
    return ops.layer_norm(x, m.w[f"{name}/gamma"], m.w[f"{name}/beta"])


def _linear(m: Model, name: str, x: F32, ops: ModuleType) -> F32:
    rounded = m.q.get(f"{name}/weight")
    if rounded is None:
        return ops.linear(x, m.w[f"{name}/weight"], m.w[f"{name}/bias"])
    y: F32 = ops.linear_int8(x, rounded)
    y += m.w[f"{name}/bias"]
    return y


def _ffn(m: Model, p: str, x: F32, ops: ModuleType) -> F32:
    y = ops.gelu(_linear(m, f"{p}/linear_0", _norm(m, f"{p}/layer_norm", x, ops), ops))
    return _linear(m, f"{p}/linear_1", y, ops)


def run(steps: Generator[None, None, F32]) -> F32:
    """Exhaust a stepwise computation and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def encode(m: Model, mel: F32, ops: ModuleType = cpu) -> F32:
    """Encoder output [T / 2, width] for log-mel features [T, mels], T even and at most 3000.

    T below 3000 gives the encoder less context than it was trained on: the positions are those of the window's start.
    """
    return run(encoder_steps(m, mel, ops))


def cross(m: Model, encoded: F32, ops: ModuleType = cpu) -> Cross:
    """Cross-attention keys and values of an encoded sound [T, width]; computed once, used at every token."""
    keys, values = [], []
    for i in range(m.cfg.decoder_layers):
        kv = _linear(m, f"decoder/layer_{i}/attention/linear_1", encoded, ops)
        kv = kv.reshape(-1, 2, m.cfg.heads, m.cfg.width // m.cfg.heads)
        keys.append(ops.contiguous(kv[:, 0].transpose(1, 0, 2)))
        values.append(ops.contiguous(kv[:, 1].transpose(1, 0, 2)))
    return Cross(tuple(keys), tuple(values), encoded)


# --- decoder ---------------------------------------------------------------------------------------------------------


def init_cache(m: Model, rows: int, length: int | None = None, ops: ModuleType = cpu) -> Cache:
    """Room for `rows` hypotheses of `length` tokens (the model's 448 unless told)."""
    shape = (rows, min(length or m.cfg.text_positions, m.cfg.text_positions), m.cfg.width)
    layers = range(m.cfg.decoder_layers)
    return Cache(tuple(ops.zeros(shape) for _ in layers), tuple(ops.zeros(shape) for _ in layers))


def reorder(cache: Cache, order: I64, length: int, ops: ModuleType = cpu) -> None:
    """Hypothesis i continues what was hypothesis order[i], for the first `length` positions."""
    if np.array_equal(order, np.arange(len(order))):
        return
    where = ops.to_device(order)
    for part in (*cache.k, *cache.v):
        part[: len(order), :length] = part[where, :length]


def decoder_hidden(
    m: Model,
    x: Cross,
    cache: Cache,
    tokens: I64,
    rows: I64,
    positions: I64,
    ops: ModuleType = cpu,
    queries: list[F32] | None = None,
) -> F32:
    """Final hidden states [M, width] of M tokens, token i at `positions[i]` of hypothesis `rows[i]`.

    tokens, rows, positions int64 [M]. Writes the tokens' keys and values to the cache; a token sees its hypothesis
    up to itself, so several tokens of one hypothesis in rising positions are one causal block.
    `queries`, where given, receives each layer's cross-attention queries [M, width]: alignment is read from them.
    """
    c, d = m.cfg, m.cfg.width
    at = ops.to_device(rows), ops.to_device(positions)
    h = m.w[_HEAD][ops.to_device(tokens)] + m.w["decoder/position_encodings/encodings"][at[1]]  # [M, D]
    lengths = positions + 1
    for i in range(c.decoder_layers):
        p = f"decoder/layer_{i}/self_attention"
        qkv = _linear(m, f"{p}/linear_0", _norm(m, f"{p}/layer_norm", h, ops), ops)  # [M, 3 D]
        cache.k[i][at] = qkv[:, d : 2 * d]
        cache.v[i][at] = qkv[:, 2 * d :]
        q = ops.contiguous(qkv[:, :d])
        y = ops.attention_cached(q, cache.k[i], cache.v[i], rows, lengths, c.heads, c.scale)
        h += _linear(m, f"{p}/linear_1", y, ops)
        p = f"decoder/layer_{i}/attention"
        q = _linear(m, f"{p}/linear_0", _norm(m, f"{p}/layer_norm", h, ops), ops)
        if queries is not None:
            queries.append(q)
        h += _linear(m, f"{p}/linear_2", ops.attention_cross(q, x.k[i], x.v[i], c.scale), ops)
        h += _ffn(m, f"decoder/layer_{i}/ffn", h, ops)
    return _norm(m, "decoder/layer_norm", h, ops)


def logits(m: Model, hidden: F32, ops: ModuleType = cpu) -> F32:
    """Scores over the vocabulary [M, vocab], on the host, from final hidden states [M, width]; the head is the embedding."""
    rounded = m.q.get(_HEAD)
    scores = ops.linear(hidden, m.w[_HEAD]) if rounded is None else ops.linear_int8(hidden, rounded)
    result: F32 = ops.to_host(ops.contiguous(scores))
    return result
