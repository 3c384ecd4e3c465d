"""English text to phonemes for the hibari voice, word by word.

The lexicon, tokenizer, tagger and number reader are the `hibari-tts` package's own Python (a port of misaki's rules,
Apache-2.0), imported from the weights cache under a private name; its net for unknown words runs here, on our ops.
What this module adds is the alignment: which phonemes belong to which white-space word of the text as it was given,
through the package's rewriting of numbers, dates and abbreviations.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bargein.kernels import cpu

from .errors import WeightsError

F32 = NDArray[np.float32]


class OovConfig(NamedTuple):
    """The unknown-word net: a character transformer whose head emits `slots` phonemes (or blanks) a character."""

    chars: tuple[str, ...]
    phonemes: tuple[str, ...]
    heads: int = 4
    layers: int = 4
    slots: int = 4
    max_chars: int = 24


class Utterance(NamedTuple):
    """One sentence as the voice reads it.

    phonemes: a string of the voice's alphabet; word_of: for each of its characters the index of the input word it
    belongs to, or -1 for pauses between words.
    """

    phonemes: str
    word_of: tuple[int, ...]


class Pronouncer(NamedTuple):
    """Everything `pronounce` needs: the package's G2P object and its two entry points."""

    g2p: Any
    normalize: Callable[[str], str]
    titles: frozenset[str]


def oov_phonemes(w: Mapping[str, F32], cfg: OovConfig, word: str, ops: Any = cpu) -> str | None:
    """Phonemes of a word by the character transformer; None when it has no character the net knows.

    Pre-norm transformer with learned positions, `slots` outputs a character, decoded as CTC (repeats merge, 0 is
    blank). Weights: hibari-tts 0.2.1, oov.onnx.
    """
    known = {c: i + 1 for i, c in enumerate(cfg.chars)}
    ids = [known[c] for c in word if c in known][: cfg.max_chars]
    if not ids:
        return None
    x = w["emb.weight"][ids] + w["pos"][: len(ids)]  # [T, 128]
    for i in range(cfg.layers):
        p = f"layers.{i}."
        y = ops.row_norm(x, w[p + "norm1.weight"], w[p + "norm1.bias"])
        qkv = y @ w[p + "self_attn.in_proj_weight"] + w[p + "self_attn.in_proj_bias"]
        attended = ops.encoder_attention(qkv, cfg.heads)
        x = x + attended @ w[p + "self_attn.out_proj.weight"] + w[p + "self_attn.out_proj.bias"]
        y = ops.row_norm(x, w[p + "norm2.weight"], w[p + "norm2.bias"])
        y = ops.bias_gelu(y @ w[p + "linear1.weight"], w[p + "linear1.bias"])
        x = x + y @ w[p + "linear2.weight"] + w[p + "linear2.bias"]
    x = ops.row_norm(x, w["norm.weight"], w["norm.bias"])
    scores = x @ w["head.weight"] + w["head.bias"]  # [T, slots * (1 + phonemes)]
    best = scores.reshape(len(ids) * cfg.slots, -1).argmax(axis=1).tolist()
    return "".join(
        cfg.phonemes[now - 1] for before, now in zip([0, *best[:-1]], best, strict=True) if now not in (0, before)
    )


def load_pronouncer(directory: Path, oov: Callable[[str], str | None]) -> Pronouncer:
    """Import the package's G2P from `directory` (its `g2p/` and `assets/`); `oov` pronounces unknown words."""
    name = "_bargein_hibari_" + hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:12]
    package = _import_package(name, directory / "g2p")
    try:
        engine = package.G2P(oov=oov)
        normalizer = sys.modules[name + ".normalize"]
        return Pronouncer(engine, normalizer.normalize, frozenset(normalizer.TITLES))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise WeightsError(directory / "g2p", f"unusable G2P ({error}); run `bargein models pull` again") from error


def _import_package(name: str, folder: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
        raise WeightsError(folder, "the G2P is not there; run `bargein models pull`")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        for loaded in [key for key in sys.modules if key == name or key.startswith(name + ".")]:
            del sys.modules[loaded]
        raise WeightsError(folder, f"the G2P does not load ({error}); run `bargein models pull` again") from error
    return module


# -- text to phonemes ------------------------------------------------------------------------------------------------

_SENTENCE_END = re.compile(r"[.!?…][\"”’)\]]*\s+(?=\S)")
_CLAUSE_MARKS = ",;:—"
_MARKS = frozenset(";:,.!?—…\"“”() ")
# Symbols the voice cannot read: emoji, pictographs, joiners. A word of nothing else is silent.
_UNREADABLE = re.compile(
    "[\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff\u2190-\u2bff\U0001f000-\U0001faff]"
)


def pronounce(pronouncer: Pronouncer, text: str, max_phonemes: int = 300) -> list[Utterance]:
    """Utterances of a text, sentence by sentence; word indices count `text.split()`.

    An utterance is at most about `max_phonemes` long: longer sentences are cut at clause marks, else between words.
    """
    words = text.split()
    utterances: list[Utterance] = []
    for first, last in _sentences(words, pronouncer.titles):
        phonemes, word_of = _pronounce_words(pronouncer, words[first:last], first)
        utterances += _cut(phonemes, word_of, max_phonemes)
    return utterances


def spelled(pronouncer: Pronouncer, text: str) -> list[str]:
    """The phonemes of each white-space word of a text, without pauses; "" for one that is not said."""
    words = [""] * len(text.split())
    for utterance in pronounce(pronouncer, text):
        for phoneme, word in zip(utterance.phonemes, utterance.word_of, strict=True):
            if word >= 0:
                words[word] += phoneme
    return words


def _sentences(words: list[str], titles: frozenset[str]) -> list[tuple[int, int]]:
    """Ranges of words that form sentences: a final mark ends one unless it is a title's or an initial's period."""
    ranges = []
    first = 0
    for i, word in enumerate(words[:-1]):
        bare = word.rstrip("\"”’)]*_")
        if bare[-1:] in ".!?…" and bare and not words[i + 1][0].islower():
            stem = bare[:-1].lstrip("(\"“'‘")
            abbreviated = bare[-1] == "." and (stem in titles or (len(stem) == 1 and stem.isupper() and stem != "I"))
            if not abbreviated:
                ranges.append((first, i + 1))
                first = i + 1
    if first < len(words):
        ranges.append((first, len(words)))
    return ranges


def _pronounce_words(pronouncer: Pronouncer, words: list[str], offset: int) -> tuple[str, list[int]]:
    readable = [_UNREADABLE.sub("", word) for word in words]
    spoken = [(i, word) for i, word in enumerate(readable) if word]
    text = pronouncer.normalize(" ".join(word for _, word in spoken))
    if not text:
        return "", []
    source = _align([word for _, word in spoken], text.split(), pronouncer.normalize)
    engine = pronouncer.g2p
    try:
        tokens = engine.phonemize_tokens(engine.tokenize(text))
    except (IndexError, KeyError, ValueError):  # a symbol the package's rules cannot place: read the plain letters
        text = re.sub(r"[^A-Za-z0-9 ,.!?']", " ", text)
        text = " ".join(text.split())
        if not text:
            return "", []
        source = _align([word for _, word in spoken], text.split(), pronouncer.normalize)
        tokens = engine.phonemize_tokens(engine.tokenize(text))
    phonemes = ""
    word_of: list[int] = []
    at = 0
    for token in tokens:
        spelled = token.phonemes or ""
        word = offset + spoken[source[min(at, len(source) - 1)]][0]
        phonemes += spelled
        word_of += [-1 if c in _MARKS else word for c in spelled]
        if token.whitespace:
            phonemes += " "
            word_of.append(-1)
            at += 1
    start = len(phonemes) - len(phonemes.lstrip())
    stripped = phonemes.strip()
    return stripped, word_of[start : start + len(stripped)]


def _align(given: list[str], normal: list[str], normalize: Callable[[str], str]) -> list[int]:
    """For each word of the normalized text, the index of the given word it came from."""
    source = [0] * len(normal)
    matcher = difflib.SequenceMatcher(None, given, normal, autojunk=False)
    for tag, g0, g1, n0, n1 in matcher.get_opcodes():
        if tag == "equal":
            source[n0:n1] = range(g0, g1)
        elif n1 > n0 and g1 > g0:
            counts = [len(normalize(word).split()) for word in given[g0:g1]]
            if sum(counts) == n1 - n0:
                source[n0:n1] = [g0 + i for i, count in enumerate(counts) for _ in range(count)]
            else:
                source[n0:n1] = [g0 + (k * (g1 - g0)) // (n1 - n0) for k in range(n1 - n0)]
        elif n1 > n0:
            source[n0:n1] = [max(0, min(g0, len(given) - 1))] * (n1 - n0)
    return source


def _cut(phonemes: str, word_of: list[int], limit: int) -> list[Utterance]:
    pieces = []
    start = 0
    while len(phonemes) - start > limit:
        window = phonemes[start : start + limit]
        marks = [i for i, c in enumerate(window) if c == " " and i > 0 and window[i - 1] in _CLAUSE_MARKS]
        spaces = [i for i, c in enumerate(window) if c == " "]
        end = start + (marks[-1] if marks and marks[-1] > limit // 3 else spaces[-1] if spaces else limit)
        pieces.append(Utterance(phonemes[start:end], tuple(word_of[start:end])))
        start = end + (phonemes[end] == " ")
    pieces.append(Utterance(phonemes[start:], tuple(word_of[start:])))
    return [piece for piece in pieces if piece.phonemes.strip()]
