"""Holds a generation to a grammar: which tokens may come next, by llguidance over the model's own vocabulary.

A grammar is llguidance's own text: made of a JSON schema or of a regular expression. `bounded` keeps a small model from
never closing a string or an object: what has no upper limit in a schema gets one. The result still fits the schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import llguidance
import llguidance.numpy as llnp
import numpy as np
from numpy.typing import NDArray

from .tokenizer import TextCodec, encode

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SAFE_CHARS, _SAFE_ITEMS = 200, 8
_SHAPED = {"properties", "additionalProperties", "$ref", "anyOf", "allOf", "oneOf"}
_ANY_OBJECT = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}, "maxProperties": 6}


class GrammarError(ValueError):
    """A schema or expression that cannot be held to; the message says which part."""


class Vocabulary:
    """A tokenizer's tokens as bytes, in the form llguidance walks. Takes seconds to build for a large vocabulary."""

    def __init__(self, codec: TextCodec, size: int) -> None:
        self.codec = codec
        self.eos_token_id = min(codec.eos)
        self.bos_token_id = codec.bos
        self.tokens = _token_bytes(codec, size)
        self.special_token_ids = sorted(set(codec.special.values()))
        self.size = size
        self.tree = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self), n_vocab=size, eos_token=self.eos_token_id)

    def __call__(self, text: bytes | str) -> list[int]:
        return encode(self.codec, text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def _token_bytes(codec: TextCodec, size: int) -> list[bytes]:
    names = codec.tokenizer.get_vocab(with_added_tokens=True)
    out = [b""] * size
    byte_level = "<0x00>" not in names
    table = _byte_table() if byte_level else {}
    special = set(codec.special)
    for name, token in names.items():
        if token >= size:
            continue
        if name in special:
            out[token] = name.encode()
        elif byte_level:
            out[token] = bytes(table[c] for c in name) if all(c in table for c in name) else name.encode()
        elif match := _BYTE.fullmatch(name):
            out[token] = bytes([int(match[1], 16)])
        else:
            out[token] = name.replace("▁", " ").encode()
    return out


def _byte_table() -> dict[str, int]:
    """The printable stand-in of every byte in a byte-level vocabulary (GPT-2's), reversed."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + n): b for n, b in enumerate(hidden)}


def of_schema(schema: dict[str, Any]) -> str:
    """The grammar of JSON texts that fit a schema, without white space to dawdle in. GrammarError where impossible."""
    try:
        return str(llguidance.LLMatcher.grammar_from_json_schema(bounded(schema), defaults={"whitespace_flexible": False}))
    except (ValueError, TypeError) as problem:
        raise GrammarError(f"schema: {problem}") from None


def of_regex(pattern: str) -> str:
    """Texts that match a regular expression (of Rust's kind, without look-around) as a whole."""
    return str(llguidance.LLMatcher.grammar_from_regex(pattern))


def of_lark(text: str) -> str:
    """Texts that follow from the rule `start` of a grammar in Lark's form, as llguidance reads it."""
    return str(llguidance.LLMatcher.grammar_from_lark(text))


def of_choices(choices: Sequence[str]) -> str:
    """One of several texts."""
    return str(llguidance.LLMatcher.grammar_from_regex("|".join(f"({re.escape(c)})" for c in choices)))


def bounded(schema: Any) -> Any:
    """The schema with an upper limit on every string and array that lacks one."""
    if isinstance(schema, list):
        return [bounded(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: v if k in ("enum", "const", "default", "examples") else bounded(v) for k, v in schema.items()}
    if out.get("type") == "string" and not {"enum", "const", "pattern", "format", "maxLength"} & out.keys():
        out["maxLength"] = max(_SAFE_CHARS, _number(out.get("minLength")))
    if out.get("type") == "array" and "maxItems" not in out:
        out["maxItems"] = max(_SAFE_ITEMS, _number(out.get("minItems")))
    if "properties" in out:
        out.setdefault("additionalProperties", False)  # or it makes up keys for ever
    if out.get("type") == "object" and not out.keys() & _SHAPED:
        out |= {k: v for k, v in _ANY_OBJECT.items() if k not in out}
    return out


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


class Guide:
    """One generation under a grammar. Raises GrammarError for a grammar the library refuses; `name`: what to call it then."""

    def __init__(self, vocabulary: Vocabulary, grammar: str, name: str = "schema") -> None:
        self._size = vocabulary.size
        self._matcher = llguidance.LLMatcher(vocabulary.tree, grammar)
        if problem := self._matcher.get_error():
            raise GrammarError(f"{name}: {problem.splitlines()[0]}")
        self._name = name
        self._mask = llnp.allocate_token_bitmask(1, vocabulary.size)

    def rule_out(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of logits [vocab] with -inf for every token that may not come next. Raises GrammarError where telling that
        takes more than the library is willing to spend."""
        llnp.fill_next_token_bitmask(self._matcher, self._mask, 0)
        if problem := self._matcher.get_error():
            raise GrammarError(f"{self._name}: {problem.splitlines()[0]}")
        allowed = np.unpackbits(self._mask[0].view(np.uint8), bitorder="little")[: self._size].astype(np.bool_)
        return np.where(allowed, logits, np.float32(-np.inf))

    def take(self, token: int) -> None:
        """The token that was chosen. Raises GrammarError where the grammar does not allow it."""
        if not self._matcher.consume_token(token):
            raise GrammarError(self._matcher.get_error() or "the token does not fit the grammar")

    @property
    def is_over(self) -> bool:
        """Nothing more may come."""
        return bool(self._matcher.is_stopped())
