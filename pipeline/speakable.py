"""Streamed chat text to phrases fit to be spoken.

A phrase is a list of pieces: the original text and what is said for it. The originals of all phrases join to exactly
what chat wrote, so history keeps the original; what cannot be said (code, emoji, markup) becomes nothing, or words.

The first phrase leaves as early as a clause allows, later ones at the ends of sentences. A border is taken only where
the text after it has shown that it is one: "98.6", "9:30 a.m.", "Dr. Lee" and "example.com" stay whole.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

FIRST_MIN_CHARS = 12  # shorter first clauses would leave the mouth dry before the next one
CLAUSE_MIN_CHARS = 90  # later phrases break at a clause only when they get this long
MAX_CHARS = 240  # and at any white space beyond this

ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr vs etc eg ie approx dept est fig gen gov inc lt ltd no mt ft rev hon capt col sgt "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun a.m p.m e.g i.e u.s u.k ph.d".split()
)


@dataclass(frozen=True, slots=True)
class Piece:
    """`original` includes the white space before it; `spoken` may be empty."""

    original: str
    spoken: str


@dataclass(frozen=True, slots=True)
class Phrase:
    pieces: tuple[Piece, ...]

    @property
    def original(self) -> str:
        return "".join(p.original for p in self.pieces)

    @property
    def spoken(self) -> str:
        return " ".join(p.spoken for p in self.pieces if p.spoken)


class Speaker:
    """Cuts one response's text into phrases as it streams in."""

    def __init__(self) -> None:
        self._text = ""
        self._first = True
        self._in_code = False

    def feed(self, text: str) -> list[Phrase]:
        """More text; the phrases that are now certain."""
        self._text += text
        out: list[Phrase] = []
        while (end := self._border()) is not None:
            out.append(self._take(end))
        return [p for p in out if p.pieces]

    def finish(self) -> list[Phrase]:
        """The text has ended: whatever is left."""
        rest = self._take(len(self._text)) if self._text else Phrase(())
        return [rest] if rest.pieces else []

    def _take(self, end: int) -> Phrase:
        head, self._text = self._text[:end], self._text[end:]
        pieces, self._in_code = to_pieces(head, self._in_code)
        if any(p.spoken for p in pieces):
            self._first = False
        return Phrase(tuple(pieces))

    def _border(self) -> int | None:
        """The end of the first phrase in the text, or None where none is certain yet."""
        text = self._text
        for match in re.finditer(r"[.!?…。！？]+[\"'”’)\]*_]*(?=\s)|[,;:—–]+[\"'”’)]*(?=\s)|\n", text):
            end = match.end()
            mark = match.group()[0]
            length = len(text[:end].strip())
            if length == 0:
                continue
            if mark == "\n":
                if length >= 2:
                    return end
                continue
            if mark in ",;:—–":
                long_enough = length >= (FIRST_MIN_CHARS if self._first else CLAUSE_MIN_CHARS)
                if long_enough and _clause_break(text, match.start()):
                    return end
                continue
            if mark == "." and not _sentence_end(text, match.start(), end):
                continue
            if length >= 2:
                return end
        if len(text) > MAX_CHARS and (cut := text.rfind(" ", 0, MAX_CHARS)) > 0:
            return cut
        return None


def _clause_break(text: str, at: int) -> bool:
    """A comma or colon between words, not inside a number or a time."""
    return not (at > 0 and text[at - 1].isdigit() and at + 1 < len(text) and text[at + 1].isdigit())


def _sentence_end(text: str, at: int, end: int) -> bool:
    """Whether the dot at `at` ends a sentence: not an abbreviation, an initial, or a list number."""
    words = text[:at].split()
    word = words[-1].lstrip("(\"'*_").lower() if words else ""
    if word in ABBREVIATIONS or re.fullmatch(r"[a-z](\.[a-z])*", word):
        if word in ("a.m", "p.m"):  # these may end a sentence: a capital after them says so
            following = text[end:].lstrip()
            return bool(following) and following[0].isupper()
        return False
    return not (word.isdigit() and len(words) == 1 and len(word) <= 3)  # "1. First"


# --- what is said for a piece --------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*\S+|\s+")
_EMOTICON = re.compile(r"^(?:<3|:-?[)(DPp]|;-?\)|\^\^|xD)$")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")
_URL = re.compile(r"^(?:https?://|www\.)\S+$", re.IGNORECASE)
_SYMBOLS = {"<": "less than", ">": "greater than", "=": "equals", "+": "plus", "&": "and", "@": "at", "~": "about",
            "≤": "at most", "≥": "at least", "≈": "about", "×": "times", "÷": "divided by", "→": "to", "±": "plus or minus"}  # fmt: skip # noqa: E501


def to_pieces(text: str, in_code: bool = False) -> tuple[list[Piece], bool]:
    """Split text at white space; say for each piece what a person would. Returns whether a code block is still open.

    The pieces' originals join to `text`.
    """
    pieces: list[Piece] = []
    for token in _merge_links(_TOKEN.findall(text)):
        word = token.strip()
        if word.startswith("```") or word.endswith("```"):
            fences = word.count("```")
            in_code ^= fences % 2 == 1
            pieces.append(Piece(token, ""))
        elif in_code:
            pieces.append(Piece(token, ""))
        else:
            at_line_start = not pieces or "\n" in token[: len(token) - len(token.lstrip())] or _only_marks(pieces)
            pieces.append(Piece(token, say(word, at_line_start)))
    return pieces, in_code


def _merge_links(tokens: list[str]) -> list[str]:
    """Join the tokens of a markdown link whose text holds spaces."""
    out: list[str] = []
    for token in tokens:
        if out and "[" in out[-1] and "](" not in out[-1] and "]" not in out[-1] and len(out[-1]) < 200:
            out[-1] += token
        else:
            out.append(token)
    return out


def _only_marks(pieces: list[Piece]) -> bool:
    return all(not p.spoken for p in pieces)


def say(word: str, at_line_start: bool = False) -> str:
    """What is spoken for one word of written text; empty where nothing is."""
    if at_line_start and re.fullmatch(r"#{1,6}|[-*+•>]|\|?[-:|]{3,}\|?", word):
        return ""
    if re.fullmatch(r"[-*_]{3,}|\|", word) or _EMOTICON.match(word):
        return ""
    word = _LINK.sub(r"\1", word)
    word = re.sub(r"^[*_~`|#]+|[*_~`|]+$|(?<=\w)[*`]+(?=\W|$)", "", word)
    word = word.replace("`", "").replace("**", "")
    if _URL.match(word):
        return _say_url(word)
    word = "".join(c for c in word if not _is_pictograph(c))
    if not word:
        return ""
    if word in _SYMBOLS:
        return _SYMBOLS[word]
    word = re.sub(r"(?<=\d)[x×](?=\d)", " by ", word)
    word = re.sub(r"(?<=\w)&(?=\w)", " and ", word)
    return word if any(c.isalnum() for c in word) or word in ".,!?;:…—–" else _keep_marks(word)


def _keep_marks(word: str) -> str:
    if word.startswith(("-", "$", "€", "£")):
        return word
    kept = "".join(c for c in word if c in ".,!?;:")
    return kept


def _say_url(url: str) -> str:
    """A web address as people read it out: without the scheme, dots spoken."""
    trailing = url[len(url.rstrip(".,!?;:)")) :]
    bare = re.sub(r"^(?:https?://)?(?:www\.)?", "", url.rstrip(".,!?;:)").rstrip("/"), flags=re.IGNORECASE)
    host, _, rest = bare.partition("/")
    said = host.replace(".", " dot ")
    if rest and len(rest) <= 24:
        said += " slash " + re.sub(r"[/_\-?=&#.]+", " ", rest)
    return re.sub(r"\s+", " ", said).strip() + trailing


def _is_pictograph(c: str) -> bool:
    """Emoji and their joiners; letters, digits, punctuation and currency stay."""
    if c in "‍️︎⃣":
        return True
    return unicodedata.category(c) in ("So", "Sk", "Cs", "Co", "Cn") and c not in "°"
