"""hibari: text to speech, one American voice, 24 kHz (hibari-tts 0.2.1, `hibari.onnx`; distilled from Kokoro-82M).

Two stacks read the phonemes: `pn` (prosody) predicts each phoneme's duration, pitch and voicing; `m` (acoustic) turns
phoneme encodings, spread over the frames, into five spectral parts a frame, from which a harmonic-plus-noise vocoder
makes the waveform. Everything after the durations is convolution, so audio comes out chunk by chunk, and the chunks
joined are the same whatever their size. Frames: 25 ms for durations and prosody, 12.5 ms (hop 300) for the vocoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bargein.kernels import cpu

from .errors import WeightsError
from .g2p import OovConfig, Pronouncer, Utterance, load_pronouncer, oov_phonemes, pronounce

F32 = NDArray[np.float32]
C64 = NDArray[np.complex64]
Weights = dict[str, Any]  # float32 arrays, and Int8Matrix where the checkpoint is int8


class Config(NamedTuple):
    """Hyperparameters of the acoustic model and its vocoder."""

    vocab: dict[str, int]
    acoustic_attention_passes: int = 4
    prosody_attention_passes: int = 6
    heads: int = 2
    acoustic_width: int = 128
    prosody_width: int = 192
    decoder_width: int = 256
    decoder_layers: int = 8
    prosody_dilations: tuple[int, ...] = (1, 2, 4, 8, 1, 2)
    text_layers: int = 2
    sample_rate: int = 24000
    hop: int = 300
    n_fft: int = 1200
    min_f0_hz: float = 40.0

    @property
    def bins(self) -> int:
        return self.n_fft // 2 + 1

    @property
    def lookahead_frames(self) -> int:
        """Frames the decoder must read beyond the one it puts out: three for each of its blocks."""
        return 3 * self.decoder_layers


class Pauses(NamedTuple):
    """Silence around speech, in seconds. The voice starts with about 0.24 s of it and ends with as much."""

    lead_s: float = 0.015
    tail_s: float = 0.12
    between_sentences_s: float = 0.25
    threshold: float = 0.004  # peak of a 2.5 ms block, full scale 1


DEFAULT_PAUSES = Pauses()
SHORTEST_PAUSE_S = 0.1
# The sound comes this much before the durations that it was made with: at onsets after a pause 42 ms (median of 187), beside
# PocketSphinx 43 (83 words).
LATE_S = 0.04


class Word(NamedTuple):
    """A white-space word of the input text and when it is heard, in seconds from the start of the speech."""

    text: str
    start_s: float
    end_s: float


class Speech(NamedTuple):
    """audio: float32 [n], 24 kHz mono; words: one a white-space word of the text, in order."""

    audio: F32
    words: tuple[Word, ...]


class Chunk(NamedTuple):
    """Some finished audio; the words of a sentence come with its first chunk, before most of their audio."""

    audio: F32
    words: tuple[Word, ...]


class Model(NamedTuple):
    """A loaded voice."""

    config: Config
    weights: Weights
    pronouncer: Pronouncer


# -- loading ---------------------------------------------------------------------------------------------------------


def _block_shapes(prefix: str, width: int, hidden: int, taps: int) -> dict[str, tuple[int, ...]]:
    return {
        prefix + "gamma": (width,),
        prefix + "dw.weight": (width, 1, taps),
        prefix + "dw.bias": (width,),
        prefix + "norm.weight": (width,),
        prefix + "norm.bias": (width,),
        prefix + "pw1.weight": (width, hidden),
        prefix + "pw1.bias": (hidden,),
        prefix + "pw2.weight": (hidden, width),
        prefix + "pw2.bias": (width,),
    }


def _attention_shapes(prefix: str, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        prefix + "self_attn.in_proj_weight": (width, 3 * width),
        prefix + "self_attn.in_proj_bias": (3 * width,),
        prefix + "self_attn.out_proj.weight": (width, width),
        prefix + "self_attn.out_proj.bias": (width,),
        prefix + "linear1.weight": (width, hidden),
        prefix + "linear1.bias": (hidden,),
        prefix + "linear2.weight": (hidden, width),
        prefix + "linear2.bias": (width,),
    }
    for norm in ("norm1.", "norm2."):
        shapes |= {prefix + norm + part: (width,) for part in ("weight", "bias")}
    return shapes


def expected_shapes(cfg: Config) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of the acoustic model, as the importer stores it."""
    symbols = 178
    shapes: dict[str, tuple[int, ...]] = {}
    for stack, width in (("m.", cfg.acoustic_width), ("pn.", cfg.prosody_width)):
        shapes[stack + "text.emb.weight"] = (symbols, width)
        for i in range(cfg.text_layers):
            shapes |= _block_shapes(f"{stack}text.convs.{i}.", width, 2 * width, 5)
        shapes |= _attention_shapes(stack + "text.attn.", width, 2 * width)
        shapes |= {f"{stack}text.norm.{part}": (width,) for part in ("weight", "bias")}
    p, d = cfg.prosody_width, cfg.decoder_width
    shapes |= {"pn.dur.0.weight": (p, p, 3), "pn.dur.0.bias": (p,), "pn.dur.2.weight": (1, p, 1), "pn.dur.2.bias": (1,)}
    shapes |= {"pn.pro_in.weight": (p, p, 1), "pn.pro_in.bias": (p,)}
    shapes |= {"pn.pro_out.weight": (4, p, 1), "pn.pro_out.bias": (4,)}
    for i in range(len(cfg.prosody_dilations)):
        shapes |= _block_shapes(f"pn.pro.{i}.", p, 2 * p, 7)
    shapes |= {"m.dec_in.weight": (d, cfg.acoustic_width + 2, 7), "m.dec_in.bias": (d,)}
    for i in range(cfg.decoder_layers):
        shapes |= _block_shapes(f"m.dec.{i}.", d, 3 * d, 7)
    shapes |= {"m.dec_norm.weight": (d,), "m.dec_norm.bias": (d,)}
    shapes |= {"m.head.weight": (d, 5 * cfg.bins), "m.head.bias": (5 * cfg.bins,)}
    return shapes


def oov_shapes(cfg: OovConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of the unknown-word net."""
    width, outputs = 128, cfg.slots * (len(cfg.phonemes) + 1)
    shapes: dict[str, tuple[int, ...]] = {
        "emb.weight": (len(cfg.chars) + 1, width),
        "pos": (cfg.max_chars, width),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.weight": (width, outputs),
        "head.bias": (outputs,),
    }
    for i in range(cfg.layers):
        shapes |= _attention_shapes(f"layers.{i}.", width, 3 * width)
    return shapes


def _read_checked(path: Path, shapes: dict[str, tuple[int, ...]], ops: Any) -> Weights:
    """All tensors of a safetensors file, exactly the expected names and shapes; int8 ones packed for the ops."""
    try:
        stored = load_file(str(path))
    except FileNotFoundError:
        raise WeightsError(path, "not there; run `bargein models pull`") from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(path, f"not readable ({error}); remove it and run `bargein models pull`") from error
    weights: Weights = {}
    for name, shape in shapes.items():
        array = stored.pop(name, None)
        if array is None or array.shape != shape:
            found = "missing" if array is None else f"{array.shape}"
            raise WeightsError(path, f"tensor {name} should be {shape}, is {found}; run `bargein models pull` again")
        if array.dtype == np.int8:
            scale, zero = stored.pop(name + ".scale", None), stored.pop(name + ".zero_point", None)
            if scale is None or zero is None or zero.any():
                raise WeightsError(path, f"tensor {name} has no symmetric scale; run `bargein models pull` again")
            weights[name] = ops.pack_rows(array.T, np.full(array.shape[1], scale[0], np.float32))
            continue
        if array.dtype != np.float32:
            raise WeightsError(path, f"tensor {name} is {array.dtype}; run `bargein models pull` again")
        weights[name] = array
    if stored:
        raise WeightsError(path, f"unknown tensor {sorted(stored)[0]}; run `bargein models pull` again")
    return weights


def _time_major(weights: Weights) -> Weights:
    """Convolutions as the ops want them: depthwise [taps, C]; full ones as a matrix [taps * C_in, C_out]."""
    ready: Weights = {}
    for name, array in weights.items():
        if isinstance(array, np.ndarray):
            if name.endswith("dw.weight"):
                array = array[:, 0, :].T
            elif name == "m.dec_in.weight":
                ready |= _decoder_entry(array)
                continue
            elif array.ndim == 3:
                array = array.transpose(2, 1, 0).reshape(-1, array.shape[0])
            array = np.ascontiguousarray(array)
        ready[name] = array
    return ready


def _decoder_entry(weight: F32) -> Weights:
    """The decoder's first convolution [C_out, C_in, taps] as it is computed: a matrix [C_in - 2, taps * C_out] for what is the
    same for all frames of a phoneme, and [taps, 2, C_out] for pitch and voicing."""
    outputs, inputs, taps = weight.shape
    by_tap = weight.transpose(2, 1, 0)  # [taps, C_in, C_out]
    spoken = by_tap[:, : inputs - 2].transpose(1, 0, 2).reshape(inputs - 2, taps * outputs)
    return {
        "m.dec_in.spoken": np.ascontiguousarray(spoken),
        "m.dec_in.tones": np.ascontiguousarray(by_tap[:, inputs - 2 :]),
    }


def load(directory: Path, ops: Any = cpu) -> Model:
    """The voice of a folder that `convert_hibari` filled; WeightsError when a file is missing, damaged or foreign."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        cfg = Config(
            vocab=dict(raw["vocab"]),
            acoustic_attention_passes=int(raw["acoustic_attention_passes"]),
            prosody_attention_passes=int(raw["prosody_attention_passes"]),
            heads=int(raw["heads"]),
        )
        oov = raw["oov"]
        oov_cfg = OovConfig(tuple(oov["chars"]), tuple(oov["phonemes"]), max_chars=int(oov["max_chars"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(path, f"not a hibari config ({error}); run `bargein models pull`") from error
    weights = _time_major(_read_checked(directory / "model.safetensors", expected_shapes(cfg), ops))
    net = _read_checked(directory / "oov.safetensors", oov_shapes(oov_cfg), ops)
    return Model(cfg, weights, load_pronouncer(directory, partial(oov_phonemes, net, oov_cfg, ops=ops)))


# -- the graph -------------------------------------------------------------------------------------------------------


BLOCK_PARTS = (
    "dw.weight", "dw.bias", "norm.weight", "norm.bias", "pw1.weight", "pw1.bias", "pw2.weight", "pw2.bias", "gamma",
)  # fmt: skip

LAYER_PARTS = (
    "norm1.weight", "norm1.bias", "self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight",
    "self_attn.out_proj.bias", "norm2.weight", "norm2.bias", "linear1.weight", "linear1.bias", "linear2.weight",
    "linear2.bias",
)  # fmt: skip


def _block(w: Weights, p: str, ops: Any) -> Any:
    return ops.ConvBlock(*(w[p + part] for part in BLOCK_PARTS))


def _pad(x: F32, rows: int, ops: Any) -> F32:
    zeros = ops.zeros((rows, x.shape[1]))
    return np.concatenate([zeros, x, zeros])


def encode_text(w: Weights, stack: str, ids: NDArray[np.int64], passes: int, cfg: Config, ops: Any = cpu) -> F32:
    """Phoneme ids [L] -> encodings [L, C] of one stack ("m." or "pn."): two convolution blocks, then one pre-norm
    transformer layer applied `passes` times, and a norm."""
    t = stack + "text."
    x = w[t + "emb.weight"][ops.to_device(ids)]
    for i in range(cfg.text_layers):
        x = ops.conv_block(_pad(x, 2, ops), _block(w, f"{t}convs.{i}.", ops))
    layer = ops.EncoderLayer(*(w[f"{t}attn.{part}"] for part in LAYER_PARTS))
    for _ in range(passes):
        x = ops.encoder_layer(x, layer, cfg.heads)
    result: F32 = ops.row_norm(x, w[t + "norm.weight"], w[t + "norm.bias"])
    return result


def durations(w: Weights, encoded: F32, speed: float, ops: Any = cpu) -> NDArray[np.int64]:
    """Prosody encodings [L, 192] -> frames of 25 ms for each phoneme [L], at least one."""
    seen = ops.windows(_pad(encoded, 1, ops), 3)
    y = ops.bias_gelu(ops.product(seen, w["pn.dur.0.weight"]), w["pn.dur.0.bias"])
    log_frames = ops.to_host(ops.product(y, w["pn.dur.2.weight"]) + w["pn.dur.2.bias"])[:, 0]
    frames = np.rint((np.exp(log_frames) - np.float32(1.0)) / np.float32(speed))
    return np.maximum(frames, 1).astype(np.int64)


def prosody(
    w: Weights, encoded: F32, frames: NDArray[np.int64], cfg: Config, ops: Any = cpu
) -> tuple[F32, F32]:
    """Prosody encodings [L, 192] and their 25 ms frames [L], F in all -> pitch in Hz and voicing, each [2 F], at 12.5 ms."""
    x = ops.product(encoded, w["pn.pro_in.weight"]) + w["pn.pro_in.bias"]
    x = x[ops.to_device(np.repeat(np.arange(len(frames)), frames))]
    for i, dilation in enumerate(cfg.prosody_dilations):
        x = ops.conv_block(_pad(x, 3 * dilation, ops), _block(w, f"pn.pro.{i}.", ops), dilation)
    out = ops.to_host(ops.product(x, w["pn.pro_out.weight"]) + w["pn.pro_out.bias"])  # [F, 4]: two pitches, two voicings
    f0 = np.ascontiguousarray(out[:, :2]).reshape(-1) * np.float32(100.0)
    return f0, np.ascontiguousarray(out[:, 2:]).reshape(-1) * np.float32(5.0)


class DecoderInput(NamedTuple):
    """What the decoder reads: the encoding [128] of each of L phonemes, which of them each of T 12.5 ms frames is of, and the
    frames' pitch (log(1 + Hz) / 5) and voicing (/ 5) [T, 2]."""

    encoded: F32
    phoneme: NDArray[np.int64]
    tones: F32


def decoder_input(encoded: F32, frames: NDArray[np.int64], f0: F32, voicing: F32) -> DecoderInput:
    """Of acoustic encodings [L, 128], their 25 ms frames [L] (F in all), pitch in Hz and voicing, both [2 F]."""
    pitch = np.log(np.float32(1.0) + np.maximum(f0, 0)) / np.float32(5.0)
    tones = np.stack([pitch, voicing / np.float32(5.0)], axis=1).astype(np.float32)
    return DecoderInput(encoded, np.repeat(np.arange(len(frames)), 2 * frames), tones)


class DecoderState:
    """How far an utterance is decoded: what its first convolution makes of each phoneme, the next frame, and the rows that
    the blocks need again."""

    def __init__(self, w: Weights, x: DecoderInput, cfg: Config, ops: Any = cpu) -> None:
        count, _, width = w["m.dec_in.tones"].shape
        side = (count // 2, count // 2)
        nothing = ops.zeros((1, count, width))  # of the padding
        self.taps: F32 = np.concatenate([ops.product(x.encoded, w["m.dec_in.spoken"]).reshape(-1, count, width), nothing])
        self.place = np.pad(x.phoneme, side, constant_values=len(x.encoded))
        self.tones: F32 = np.pad(x.tones, (side, (0, 0)))
        self.at, self.frames = 0, len(x.phoneme)
        self.held: F32 = ops.zeros((cfg.decoder_layers, 6, cfg.decoder_width))
        self.counts = np.full(cfg.decoder_layers, 3)
        self.blocks = tuple(_block(w, f"m.dec.{n}.", ops) for n in range(cfg.decoder_layers))

    @property
    def done(self) -> bool:
        """Whether all frames have been read."""
        return self.at == self.frames


def decode_frames(w: Weights, state: DecoderState, count: int, ops: Any = cpu) -> F32:
    """The next `count` frames of an utterance (fewer at its end) -> finished head rows [T, 5 * 601]; advances `state`.

    T lags the input by `lookahead_frames` in all; with the last frame everything comes out (each block then sees its zero
    padding). The rows are the same whatever the counts.
    """
    at, state.at = state.at, min(state.frames, state.at + count)
    seen = slice(at, state.at + len(w["m.dec_in.tones"]) - 1)
    x = ops.spread_conv(state.taps, state.place[seen], state.tones[seen], w["m.dec_in.tones"], w["m.dec_in.bias"])
    nothing = np.zeros((0, w["m.head.bias"].shape[0]), np.float32)
    x = ops.conv_stack(x, state.held, state.counts, state.blocks, state.done)
    if x.shape[0] == 0:
        return nothing
    x = ops.row_norm(x, w["m.dec_norm.weight"], w["m.dec_norm.bias"])
    head: F32 = ops.linear_int8(x, w["m.head.weight"])
    head += w["m.head.bias"]
    return head


class Vocoder:
    """Head rows to samples, chunk by chunk: harmonic source, spectral mix, inverse STFT with overlap-add.

    S = e^lh e^(i pi tanh theta) STFT(pulses(f0)) + e^ln Z + e^lr e^(i phi), n_fft 1200, hop 300, periodic Hann.
    """

    def __init__(self, f0: F32, seed: int, cfg: Config, ops: Any = cpu) -> None:
        size = cfg.n_fft
        self.cfg, self.ops, self.seed = cfg, ops, seed
        self.window: F32 = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)
        self.source_window: F32 = self.window / np.float32(size / 4)
        pulses = ops.harmonic_source(f0, cfg.hop, cfg.sample_rate, cfg.min_f0_hz)
        self.padded: F32 = np.pad(pulses, size // 2, mode="reflect")
        self.frames = f0.shape[0]
        self.done = 0
        squares = (self.window * self.window).reshape(-1, cfg.hop)
        self.squares, self.inside = squares, np.float32(1.0) / squares.sum(axis=0)
        self.tail: F32 = ops.zeros(size - cfg.hop)

    def samples(self, head: F32, noise: C64 | None = None) -> F32:
        """The next head rows [T, 3005] -> float32 samples that no later frame can change (all, after the last row)."""
        cfg, ops, rows = self.cfg, self.ops, head.shape[0]
        if rows == 0:
            return np.zeros(0, np.float32)
        source = ops.stft_rows(self.padded, self.source_window, cfg.hop, self.done, self.done + rows)
        if noise is None:
            noise = ops.gaussian_rows(self.seed, self.done, rows, cfg.bins)
        finished, self.tail = ops.overlap_add(
            ops.vocoder_spectrum(head, source, noise), self.window, cfg.hop, self.tail
        )
        first = self.done
        self.done += rows
        blocks = finished.reshape(rows, cfg.hop)
        if self.done == self.frames:
            blocks = np.concatenate([blocks, self.tail.reshape(-1, cfg.hop)[:2]])
        ahead = len(self.squares) - 1
        if first >= ahead and self.done < self.frames:
            blocks = ops.to_host(blocks) * self.inside
        else:
            blocks = ops.to_host(blocks) * self._inverse_window_sum(first, blocks.shape[0])
        return blocks[max(0, 2 - first) :].reshape(-1)  # centre padding: the first two blocks are before time zero

    def _inverse_window_sum(self, first: int, count: int) -> F32:
        """1 / summed squared window of output blocks first.. [count, hop]: constant (`inside`) but at both ends."""
        total = np.zeros((count, self.cfg.hop), np.float32)
        for k, part in enumerate(self.squares):
            frame = np.arange(first, first + count) - k
            total += np.where((frame >= 0) & (frame < self.frames), np.float32(1), np.float32(0))[:, None] * part
        return np.float32(1.0) / np.maximum(total, np.float32(1e-11))


# -- speech ----------------------------------------------------------------------------------------------------------


class _Trimmer:
    """Lets audio through between the first and the last audible block, with short pauses kept at both ends."""

    def __init__(self, lead: int, tail: int, threshold: float) -> None:
        self.lead, self.tail, self.threshold = lead, tail, threshold
        self.held: F32 = np.zeros(0, np.float32)
        self.cut: int | None = None  # samples dropped at the start, once known

    def feed(self, audio: F32, last: bool) -> F32:
        """Audio that may be played now; silence is held back until sound follows it."""
        block = 60
        held = np.concatenate([self.held, audio])
        loud = np.abs(held) > self.threshold
        first = int(loud.argmax()) if len(loud) else 0
        sound = len(loud) > 0 and bool(loud[first])
        end_of_sound = ((len(loud) - 1 - int(loud[::-1].argmax())) // block + 1) * block if sound else 0
        if self.cut is None:
            if not sound:
                self.held = held
                return np.zeros(0, np.float32)
            self.cut = max(0, first // block * block - self.lead)
            held, end_of_sound = held[self.cut :], end_of_sound - self.cut
        keep = min(len(held), end_of_sound + self.tail if last else end_of_sound)
        self.held = held[keep:]
        return held[:keep]


def _word_times(
    ids_word: list[int], frames: NDArray[np.int64], frame_s: float
) -> dict[int, tuple[float, float]]:
    """word index -> (start, end) in seconds of the untrimmed audio, from the durations of its phonemes.

    The durations are late as a whole. A phoneme before a pause is given part of the pause's frames: no more than 100 ms of
    it count as the word. In what is shorter than a pause, the gap between two words, the second one is heard to begin.
    """
    ends = np.cumsum(frames) * frame_s
    spans: dict[int, tuple[float, float]] = {}
    said = 0.0  # up to here by the words before
    for position, word in enumerate(ids_word):
        if word < 0:
            continue
        start = float(ends[position] - frames[position] * frame_s)
        if word not in spans and 0 < start - said <= SHORTEST_PAUSE_S and position > 1:
            start = said
        end = min(float(ends[position]), start + 0.1) if ids_word[position + 1] < 0 else float(ends[position])
        spans[word] = (spans[word][0] if word in spans else start, end)
        said = float(ends[position])
    return {word: (max(0.0, start - LATE_S), max(0.0, end - LATE_S)) for word, (start, end) in spans.items()}


def synthesize_steps(
    model: Model,
    text: str,
    speed: float = 1.0,
    seed: int = 0,
    pauses: Pauses = DEFAULT_PAUSES,
    chunk_frames: int = 64,
    ops: Any = cpu,
) -> Iterator[Chunk | None]:
    """Speak a text in bounded steps: yields None after a stage of work, a Chunk when audio is ready.

    The chunks' audio joined is the speech; their words joined are one a white-space word of the text, times counted
    from the start of the speech. A word without sound of its own (a dash, an emoji) has no length. speed 0.5 to 2.
    """
    cfg, w = model.config, model.weights
    if not 0.25 <= speed <= 4.0:
        raise ValueError(f"speed must be between 0.25 and 4, is {speed}")
    words = text.split()
    utterances = pronounce(model.pronouncer, text)
    yield None
    spoken = 0  # samples given out
    given = 0  # words given out
    for number, utterance in enumerate(utterances):
        final = number == len(utterances) - 1
        ids, ids_word = _symbols(cfg, utterance)
        if len(ids) < 3:
            continue
        encoded = encode_text(w, "pn.", ids, cfg.prosody_attention_passes, cfg, ops)
        frames = durations(w, encoded, speed, ops)
        yield None
        acoustic = encode_text(w, "m.", ids, cfg.acoustic_attention_passes, cfg, ops)
        yield None
        f0, voicing = prosody(w, encoded, frames, cfg, ops)
        vocoder = Vocoder(f0, seed + number, cfg, ops)
        state = DecoderState(w, decoder_input(acoustic, frames, f0, voicing), cfg, ops)
        tail_s = pauses.tail_s if final else pauses.between_sentences_s
        trimmer = _Trimmer(int(pauses.lead_s * cfg.sample_rate), int(tail_s * cfg.sample_rate), pauses.threshold)
        spans = _word_times(ids_word, frames, 2 * cfg.hop / cfg.sample_rate)
        yield None
        begun = spoken
        step = 2 * int(frames[0]) + cfg.lookahead_frames + 12
        while not state.done:
            head = decode_frames(w, state, step, ops)
            before_cut = trimmer.cut
            audio = trimmer.feed(vocoder.samples(head), state.done)
            step = chunk_frames
            timed: tuple[Word, ...] = ()
            if before_cut is None and trimmer.cut is not None:
                until = len(words) if final else max([*spans, given - 1]) + 1
                shift = (begun - trimmer.cut) / cfg.sample_rate
                timed = _timed_words(words, given, until, spans, shift, begun / cfg.sample_rate)
                given = until
            spoken += len(audio)
            yield Chunk(audio, timed) if len(audio) or timed else None
    if given < len(words):
        now = spoken / cfg.sample_rate
        yield Chunk(np.zeros(0, np.float32), tuple(Word(word, now, now) for word in words[given:]))


def _symbols(cfg: Config, utterance: Utterance) -> tuple[NDArray[np.int64], list[int]]:
    """Ids with the pad symbol at both ends, and the word index of each (-1: none)."""
    known = [
        (cfg.vocab[c], word) for c, word in zip(utterance.phonemes, utterance.word_of, strict=True) if c in cfg.vocab
    ]
    return np.array([0, *(i for i, _ in known), 0], np.int64), [-1, *(word for _, word in known), -1]


def _timed_words(
    words: list[str], first: int, until: int, spans: dict[int, tuple[float, float]], shift: float, floor: float
) -> tuple[Word, ...]:
    timed = []
    now = floor
    for index in range(first, until):
        start, end = spans.get(index, (now - shift, now - shift))
        start = max(start + shift, now)
        now = max(end + shift, start)
        timed.append(Word(words[index], round(start, 4), round(now, 4)))
    return tuple(timed)


def synthesize(
    model: Model, text: str, speed: float = 1.0, seed: int = 0, pauses: Pauses = DEFAULT_PAUSES, ops: Any = cpu
) -> Speech:
    """Speak a text: 24 kHz float32 audio and the times of its words. Empty text gives empty speech."""
    chunks = [chunk for chunk in synthesize_steps(model, text, speed, seed, pauses, ops=ops) if chunk is not None]
    audio = np.concatenate([np.zeros(0, np.float32), *(chunk.audio for chunk in chunks)])
    return Speech(audio, tuple(word for chunk in chunks for word in chunk.words))
