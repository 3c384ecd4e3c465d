"""Text to token ids and back: `tokenizers` pipelines built from a GGUF file's vocabulary, and streaming detokenizing.

Two families: byte-level BPE with a merge list (SmolLM2), and SentencePiece-style BPE with scores and byte fallback
(Gemma), whose merge list is recovered from the scores.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from .errors import WeightsError
from .readers_gguf import GgufFile, field

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6  # token types of GGUF


LONGEST_KNOWN, MOST_KNOWN = 2000, 20_000  # letters of a text whose tokens are kept, and how many texts


class TextCodec(NamedTuple):
    """A loaded tokenizer. bos is None for a model that has no beginning token; `special` maps names to ids.

    known: what short texts came to, where that is kept: a conversation's lines are asked for again with every turn.
    """

    tokenizer: Tokenizer
    bos: int | None
    eos: frozenset[int]
    special: dict[str, int]
    known: dict[str, tuple[int, ...]] | None = None


def build_tokenizer(file: GgufFile) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer a GGUF file describes, and its special tokens {"bos", "eos": [..], "special": {text: id}}."""
    family = field(file, "tokenizer.ggml.model")
    tokens: list[str] = field(file, "tokenizer.ggml.tokens")
    kinds: list[int] = field(file, "tokenizer.ggml.token_type")
    if family == "gpt2":
        tokenizer = _byte_level(tokens, field(file, "tokenizer.ggml.merges"), field(file, "tokenizer.ggml.pre"), file)
    elif family == "llama":
        tokenizer = _sentencepiece(tokens, field(file, "tokenizer.ggml.scores"), kinds)
    else:
        raise WeightsError(file.path, f"tokenizer family {family} is not supported; gpt2 and llama are")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED and "▁" not in token]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in defined])
    ids = {token: i for i, token in enumerate(tokens)}
    eos = [int(field(file, "tokenizer.ggml.eos_token_id"))]
    eos += [ids[token] for token in ("<end_of_turn>", "<|im_end|>", "<|endoftext|>") if token in ids]
    has_bos = bool(field(file, "tokenizer.ggml.add_bos_token", True))
    return tokenizer, {
        "bos": int(field(file, "tokenizer.ggml.bos_token_id")) if has_bos else None,
        "eos": sorted(set(eos)),
        "special": {token: ids[token] for token in control if not token.startswith("<unused")},
    }


def _byte_level(tokens: list[str], merges: list[str], splitter: str, file: GgufFile) -> Tokenizer:
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if splitter == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif splitter not in ("default", "gpt-2"):
        raise WeightsError(file.path, f"pre-tokenizer {splitter} is not supported")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(tokens: list[str], scores: list[float], kinds: list[int]) -> Tokenizer:
    """BPE whose merges are every split of a piece into two pieces, best-scored piece first."""
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for piece, score, kind in zip(tokens, scores, kinds, strict=True):
        if kind in (_CONTROL, _BYTE) or len(piece) < 2:
            continue
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        merges += [
            (-score, ids[left], ids[right], left, right) for left, right in splits if left in ids and right in ids
        ]
    merges.sort(key=lambda merge: merge[:3])
    model = models.BPE(ids, [merge[3:] for merge in merges], fuse_unk=True, byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def load_codec(directory: Path) -> TextCodec:
    """The tokenizer of a converted folder; WeightsError when a file is missing or damaged."""
    path = directory / "tokenizer.json"
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))["tokens"]
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise WeightsError(path, f"not a readable tokenizer ({error}); run `bargein models pull` again") from error
    return TextCodec(tokenizer, raw["bos"], frozenset(raw["eos"]), dict(raw["special"]), {})


def encode(codec: TextCodec, text: str, special: bool = False) -> list[int]:
    """Token ids of a text, without a beginning token. Unless `special`, text that spells a special token stays text."""
    if special:
        return list(codec.tokenizer.encode(text, add_special_tokens=False).ids)
    if codec.known is not None and (known := codec.known.get(text)) is not None:
        return list(known)
    ids: list[int] = []
    for piece in _split_special(codec, text):
        ids += codec.tokenizer.encode(piece, add_special_tokens=False).ids
    if codec.known is not None and len(text) <= LONGEST_KNOWN:
        if len(codec.known) >= MOST_KNOWN:
            codec.known.clear()
        codec.known[text] = tuple(ids)
    return ids


def _split_special(codec: TextCodec, text: str) -> list[str]:
    """Pieces of a text cut inside every special token it spells, so that none is read as one."""
    pieces = [text]
    for token in codec.special:
        if token in text:
            cut = len(token) // 2
            pieces = [part for piece in pieces for part in _cut_inside(piece, token, cut)]
    return [piece for piece in pieces if piece]


def _cut_inside(text: str, token: str, cut: int) -> list[str]:
    parts = text.split(token)
    cuts = [parts[0]]
    for part in parts[1:]:
        cuts[-1] += token[:cut]
        cuts.append(token[cut:] + part)
    return cuts


def decode(codec: TextCodec, ids: Sequence[int]) -> str:
    """Text of token ids, special tokens left out."""
    return str(codec.tokenizer.decode(list(ids), skip_special_tokens=True))


class Detokenizer:
    """Streams text of tokens as they come; a character split over tokens waits until it is whole.

    Decodes a short window (from the last place where text was given out) so that the cost of a token is constant, and
    gives out only what a complete UTF-8 sequence makes certain.
    """

    def __init__(self, codec: TextCodec) -> None:
        self.codec = codec
        self.window: list[int] = []
        self.given = ""  # text of `window` already given out

    def push(self, token: int) -> str:
        """The text this token completes, possibly empty."""
        self.window.append(token)
        text = decode(self.codec, self.window)
        if text.endswith("\ufffd") and len(self.window) < 12:
            return ""
        new = text[len(self.given) :]
        # Keep one token of context: a decoder may drop or add a space at the start of its input.
        self.window = [token]
        self.given = decode(self.codec, self.window)
        if not text.endswith(self.given):
            self.window, self.given = [], ""
        return new

    def finish(self) -> str:
        """What is left when no token follows: an incomplete character becomes U+FFFD."""
        text = decode(self.codec, self.window)[len(self.given) :]
        self.window, self.given = [], ""
        return text
