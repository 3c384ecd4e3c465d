"""Whisper's languages: ISO codes, and the English names that verbose transcripts use."""

from __future__ import annotations

from ..errors import bad

_NAMES = """
en english zh chinese de german es spanish ru russian ko korean fr french ja japanese pt portuguese tr turkish pl polish
ca catalan nl dutch ar arabic sv swedish it italian id indonesian hi hindi fi finnish vi vietnamese he hebrew uk ukrainian
el greek ms malay cs czech ro romanian da danish hu hungarian ta tamil no norwegian th thai ur urdu hr croatian
bg bulgarian lt lithuanian la latin mi maori ml malayalam cy welsh sk slovak te telugu fa persian lv latvian bn bengali
sr serbian az azerbaijani sl slovenian kn kannada et estonian mk macedonian br breton eu basque is icelandic hy armenian
ne nepali mn mongolian bs bosnian kk kazakh sq albanian sw swahili gl galician mr marathi pa punjabi si sinhala km khmer
sn shona yo yoruba so somali af afrikaans oc occitan ka georgian be belarusian tg tajik sd sindhi gu gujarati am amharic
yi yiddish lo lao uz uzbek fo faroese ht haitian_creole ps pashto tk turkmen nn nynorsk mt maltese sa sanskrit
lb luxembourgish my myanmar bo tibetan tl tagalog mg malagasy as assamese tt tatar haw hawaiian ln lingala ha hausa
ba bashkir jw javanese su sundanese
""".split()
NAMES = {code: name.replace("_", " ") for code, name in zip(_NAMES[::2], _NAMES[1::2], strict=True)}
_CODES = {name: code for code, name in NAMES.items()}


def code_of(text: str) -> str:
    """The code of a request's `language`: a code, a code with a region ("en-US") or a name. "" stays. ApiError."""
    if not text:
        return ""
    low = text.strip().lower()
    code = _CODES.get(low, low.replace("_", "-").split("-")[0])
    if code not in NAMES:
        raise bad("language", f"'language': {text[:40]!r} is not a language that is known here", "invalid_language")
    return code


def name_of(code: str) -> str:
    """The English name of a code."""
    return NAMES.get(code, code)
