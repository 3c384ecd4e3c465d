"""Sounds and short words that say "I am listening" and do not claim the floor, per language (SPEC section 9).

Matched on normalised words: case, punctuation, hyphens and repeated letters make no difference, so "Mm-hmm." and "mhm"
are one. Some are answers too ("yes"); near a reply's end the boundary rule takes them for one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import cache

Phrases = frozenset[tuple[str, ...]]

# Single words, then phrases that are separated by commas.
LISTS: dict[str, tuple[str, str]] = {
    "en": (
        "mm hm mhm mm-hm m-hm uh-huh um-hum huh ah aha oh o ooh wow um uh er erm yeah yep yup yes ya right alright so "
        "okay ok sure true exactly indeed good great nice cool fine really interesting absolutely definitely "
        "totally gotcha",
        "uh huh, mm hm, all right, of course, got it, i see, no way, makes sense, i c, ic, that's right, sounds good, go "
        "on",
    ),
    "de": (
        "mm hm mhm mm-hm aha ah ach oh äh ähm ja jo jep joa jaja genau achso okay ok gut klar stimmt richtig "
        "verstehe eben sicher natürlich interessant wirklich echt schön toll super",
        "ach so, alles klar, ich verstehe, na klar, so so, sehr gut",
    ),
    "fr": (
        "mm hm mhm mm-hm euh ah oh ouais oui si voilà ok okay bon bien exactement absolument vraiment certes "
        "super parfait",
        "d'accord, très bien, je vois, tout à fait, c'est vrai, c'est ça, bien sûr, en effet",
    ),
    "es": (
        "mm hm mhm mm-hm ajá eh ah oh sí ya claro vale ok okay bueno bien exacto entiendo verdad cierto perfecto "
        "genial",
        "muy bien, ya veo, de acuerdo, por supuesto, así es, claro que sí, en serio",
    ),
    "it": (
        "mm hm mhm mm-hm eh ah ehm oh aha sì già certo ok okay bene capisco esatto giusto davvero vero infatti "
        "appunto certamente interessante perfetto",
        "va bene, ho capito, d'accordo, molto bene",
    ),
    "pt": (
        "mm hm mhm mm-hm ahã aham hã ah oh é sim pois claro certo ok okay tá entendo entendi exato exatamente "
        "isso verdade sério bom bem legal perfeito",
        "pois é, tá bom, está bem, isso mesmo, com certeza, muito bem",
    ),
    "nl": (
        "mm hm mhm mm-hm ah oh aha eh uh ja jaja jawel oké ok okay goed juist precies inderdaad klopt natuurlijk "
        "zeker echt leuk mooi tuurlijk",
        "ik snap het, ik begrijp het, snap ik, heel goed",
    ),
    "ja": (
        "うん ううん ん はい ええ ああ あー へえ へー ほう ふーん おー そう そうですね そうですか "
        "そうか そっか なるほど なるほどね たしかに 確かに わかりました 分かりました 了解 オーケー うーん えー "
        "まあ ほんと 本当 ほんとに 本当に",
        "",
    ),
}

# A hum, as a recogniser of words writes it: "mem", "bim", "mama", "memph". Words that people say are left out.
_HUM = re.compile(r"(?!(?:me|my|home|map|him|ham|hip|hope|maybe)$)(?=.*m)[mbhp]+[aeiou]?(?:[mbhp]+[aeiou]?){0,2}")
_CJK = re.compile(r"[぀-ヿ㐀-鿿々]")


def words(text: str) -> list[str]:
    """The normalised words of a text: lower case, letters and digits only, runs of a letter as one.

    Japanese is not split at word borders: a stretch between punctuation counts as one word.
    """
    out: list[str] = []
    for token in re.split(r"[^\w'’\-]+", unicodedata.normalize("NFKC", text).casefold()):
        word = "".join(c for c in token if c.isalnum() or c == "ー")
        if word:
            out.append(word if _CJK.search(word) else re.sub(r"([^\W\d])\1+", r"\1", word))
    return out


def phrases(entries: Collection[str]) -> Phrases:
    """Entries as tuples of normalised words."""
    return frozenset(entry for entry in (tuple(words(x)) for x in entries) if entry)


@cache
def default(language: str | None) -> Phrases:
    """The list of a language ("en", "pt-BR"); where it is not known, all lists together."""
    code = (language or "").lower().split("-")[0]
    chosen = [LISTS[code]] if code in LISTS else list(LISTS.values())
    return phrases([x for single, several in chosen for x in (*single.split(), *several.split(","))])


def loop(said: list[str]) -> bool:
    """Whether the words end with the same one to three words three times over: a transcript that caught itself."""
    for n in (1, 2, 3):
        end = said[-n:]
        if len(said) >= 3 * n and said[-2 * n : -n] == end and said[-3 * n : -2 * n] == end:
            return True
    return False


def are_backchannels(said: list[str], known: Phrases, *, unfinished: bool = False) -> bool:
    """Whether the normalised words are nothing but backchannels, one after the other.

    `unfinished`: more is to come, and the last words may be the beginning of one.
    """
    longest = max((len(p) for p in known), default=0)
    at = 0
    while at < len(said):
        if _CJK.search(said[at]) and _joined(said[at], known):
            at += 1
            continue
        fits = [n for n in range(min(longest, len(said) - at), 0, -1) if tuple(said[at : at + n]) in known]
        if not fits and _HUM.fullmatch(said[at]) and ("m",) in known:
            at += 1
            continue
        if not fits:
            rest = tuple(said[at:])
            return unfinished and any(p[: len(rest)] == rest for p in known)
        at += fits[0]
    return True


def _joined(run: str, known: Phrases) -> bool:
    """Whether a stretch without spaces is backchannels one after the other."""
    reach = {0}
    for end in range(1, len(run) + 1):
        if any((run[start:end],) in known for start in reach):
            reach.add(end)
    return len(run) in reach
