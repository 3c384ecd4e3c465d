"""`POST /v1/audio/transcriptions`, `/translations` and `/alignments`: recordings of any length to text."""

from __future__ import annotations

import difflib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

from bargein.engine import protocol as p
from bargein.pipeline import diarization, recordings
from bargein.pipeline.cutting import RATE, Window
from bargein.pipeline.oneshot import Use

from ..errors import bad
from ..metrics import METRICS
from ..services import SERVICES
from .formats import Line, Output, srt, vtt
from .languages import code_of, name_of
from .names import resolve
from .streams import event, json_response, stream
from .uploads import Form, form, sound

Task = Literal["transcribe", "translate"]
FORMATS = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
MAX_PROMPT = 8192


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parsed request."""

    task: Task
    format: str
    granularities: tuple[str, ...]
    stream: bool
    wish: recordings.Wish
    speakers: int | None


def parse(request: web.Request, f: Form, task: Task) -> Wanted:
    """Read and check a form's fields. Raises ApiError."""
    resolve(request.app[SERVICES], "stt", f.needed_text("model"))
    formats = FORMATS if task == "transcribe" else FORMATS[:5]
    fmt = f.text("response_format", "json", choices=formats) or "json"
    prompt = f.text("prompt", "", max_chars=MAX_PROMPT) or ""
    temperature = f.number("temperature", 0, 1, 0.0) or 0.0
    language, streaming, speakers = "", False, None
    granularities: tuple[str, ...] = ("segment",)
    if task == "transcribe":
        language = code_of(f.text("language", "") or "")
        granularities = _granularities(f, fmt)
        streaming = f.flag("stream")
        if streaming and fmt not in ("json", "text", "diarized_json"):
            raise bad("response_format", f"'response_format': {fmt} is not streamed", "unsupported_value")
        f.only("chunking_strategy", ("auto", '"auto"', '{"type":"server_vad"}'), "recordings are cut by voice activity alone")
        speakers = f.integer("num_speakers", 1, 20)
        f.only("include", ([],), "the log-probabilities of tokens are not given")
        keywords = [str(x) for x in f.array("keywords") or []]
        if keywords:
            prompt = f"{prompt} {', '.join(keywords)}"[:MAX_PROMPT].strip()
        listed = [code_of(str(x)) for x in f.array("languages") or []]
        if len(listed) > 1:
            raise f.refuse("languages", "a recording is heard in one language; leave it out to find out", "unsupported_value")
        language = language or (listed[0] if listed else "")
        f.only("known_speaker_names", ([],), "speakers are told apart, not recognized")
        f.only("known_speaker_references", ([],), "speakers are told apart, not recognized")
    f.finish()
    wish = recordings.Wish(
        language, task, prompt, temperature, words="word" in granularities or fmt == "diarized_json", soon=streaming
    )
    return Wanted(task, fmt, granularities, streaming, wish, speakers)


def _granularities(f: Form, fmt: str) -> tuple[str, ...]:
    given = tuple(f.array("timestamp_granularities") or ())
    if any(x not in ("word", "segment") for x in given):
        raise f.refuse("timestamp_granularities", "must be 'word' and 'segment'", "invalid_value")
    if given and fmt != "verbose_json":
        raise f.refuse("timestamp_granularities", "needs 'response_format': 'verbose_json'", "unsupported_value")
    return given or ("segment",)


async def transcribe(request: web.Request) -> web.StreamResponse:
    """What a recording says, in its own language."""
    return await _answer(request, "transcribe")


async def translate(request: web.Request) -> web.StreamResponse:
    """What a recording says, in English."""
    return await _answer(request, "translate")


async def _answer(request: web.Request, task: Task) -> web.StreamResponse:
    async with form(request) as f:
        wanted = parse(request, f, task)
        if wanted.stream and wanted.format != "diarized_json":
            return await stream(request, _events(request, wanted, f))
        tally, output = recordings.Tally(), Output()
        engine = request.app[SERVICES].engine
        async with aclosing(recordings.transcribe(engine, sound(request, f.file), wanted.wish, tally)) as parts:
            async for part in parts:
                output.add(part)
        request.app[METRICS].audio.labels("heard").inc(tally.seconds)
        if wanted.format == "diarized_json":
            voices = diarization.Voices(engine)
            await voices.listen(sound(request, f.file))
            body = output.diarized(await voices.turns(wanted.speakers), tally.seconds)
            if wanted.stream:
                return await stream(request, _diarized_events(body))
            return json_response(body)
    return _render(wanted, output, tally)


def _render(wanted: Wanted, output: Output, tally: recordings.Tally) -> web.Response:
    text = output.text
    usage = {"type": "duration", "seconds": round(tally.seconds, 2)}
    match wanted.format:
        case "text":
            return web.Response(text=text + "\n", content_type="text/plain")
        case "srt":
            return web.Response(text=srt(output.lines), content_type="text/plain")
        case "vtt":
            return web.Response(text=vtt(output.lines), content_type="text/vtt")
        case "verbose_json":
            body: dict[str, Any] = {
                "task": wanted.task, "text": text, "duration": round(tally.seconds, 3),
                "language": "english" if wanted.task == "translate" else name_of(tally.language or "en"),
            }  # fmt: skip
            if "segment" in wanted.granularities:
                body["segments"] = output.segments
            if "word" in wanted.granularities:
                body["words"] = [{"word": w.text, "start": w.start, "end": w.end} for w in output.words]
            return json_response(body | ({"usage": usage} if wanted.task == "transcribe" else {}))
    return json_response({"text": text} | ({"usage": usage} if wanted.task == "transcribe" else {}))


async def _events(request: web.Request, wanted: Wanted, f: Form) -> AsyncGenerator[bytes, None]:
    tally, text, tokens = recordings.Tally(), "", 0
    engine = request.app[SERVICES].engine
    async with aclosing(recordings.transcribe(engine, sound(request, f.file), wanted.wish, tally)) as parts:
        async for part in parts:
            tokens += sum(len(s.tokens) for s in part.heard.segments)
            for word in re.findall(r"\s*\S+", part.heard.text):
                delta = word if not text or word[0].isspace() else f" {word}"
                text += delta
                yield event({"type": "transcript.text.delta", "delta": delta}, "transcript.text.delta")
    request.app[METRICS].audio.labels("heard").inc(tally.seconds)
    heard = round(10 * tally.seconds)  # the recording counts in tenths of a second
    usage = {"type": "tokens", "input_tokens": heard, "output_tokens": tokens, "total_tokens": heard + tokens,
             "input_token_details": {"audio_tokens": heard, "text_tokens": 0}}  # fmt: skip
    yield event({"type": "transcript.text.done", "text": text, "usage": usage}, "transcript.text.done")


async def _diarized_events(body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    for segment in body["segments"]:
        name = "transcript.text.segment"
        yield event({**segment, "type": name}, name)
    yield event({"type": "transcript.text.done", "text": body["text"]}, "transcript.text.done")


# --- a known text ----------------------------------------------------------------------------------------------------


async def align(request: web.Request) -> web.Response:
    """When each word of a given text is said: multipart with `file`, `text`, `model` and `language`."""
    async with form(request) as f:
        resolve(request.app[SERVICES], "stt", f.text("model", "") or "")
        text = f.needed_text("text", 100_000)
        if not text.strip():
            raise bad("text", "'text': is empty", "invalid_value")
        language = code_of(f.text("language", "") or "")
        f.finish()
        engine = request.app[SERVICES].engine
        tally, windows = recordings.Tally(), list[tuple[Window, p.Heard]]()
        async with Use(engine, "stt") as use:
            async with aclosing(recordings.windows(engine, sound(request, f.file), tally)) as found:
                async for window in found:
                    ask = p.Hear(window.sound.tobytes(), language, words=True)
                    windows.append((window, await use.one(ask)))
            lines = await _placed(use, windows, text.split(), language)
    words = [{"word": w.text, "start": w.start, "end": w.end} for w in lines]
    return json_response({"text": text, "duration": round(tally.seconds, 3), "words": words})


async def _placed(use: Use, windows: list[tuple[Window, p.Heard]], words: list[str], language: str) -> list[Line]:
    """The given words' times: what was heard says which of them belong to which window."""
    if not windows:
        raise bad("file", "'file': holds no speech", "invalid_audio")
    heard = [(i, w.text) for i, (_, h) in enumerate(windows) for w in h.words]
    owner: list[int | None] = [None] * len(words)
    matcher = difflib.SequenceMatcher(None, [_bare(w) for w in words], [_bare(t) for _, t in heard], autojunk=False)
    for block in matcher.get_matching_blocks():
        for k in range(block.size):
            owner[block.a + k] = heard[block.b + k][0]
    last, out = 0, list[Line]()
    filled = []
    for index in owner:
        last = max(last, index if index is not None else last)
        filled.append(last)
    for number, (window, found) in enumerate(windows):
        mine = [w for w, at in zip(words, filled, strict=True) if at == number]
        if not mine:
            continue
        ask = p.Hear(window.sound.tobytes(), language or found.language, text=" ".join(mine))
        aligned: p.Heard = await use.one(ask)
        start = window.start / RATE
        out += [Line(w.text, round(start + w.start_s, 3), round(start + w.end_s, 3)) for w in aligned.words]
    return out


def _bare(word: str) -> str:
    return re.sub(r"[^\w']", "", word.lower())


# --- who speaks when -------------------------------------------------------------------------------------------------


async def diarize(request: web.Request) -> web.Response:
    """Who speaks when: multipart with `file`, `model` and `num_speakers`."""
    async with form(request) as f:
        resolve(request.app[SERVICES], "voice", f.text("model", "") or "")
        speakers = f.integer("num_speakers", 1, 20)
        f.finish()
        voices = diarization.Voices(request.app[SERVICES].engine)
        seconds = await voices.listen(sound(request, f.file))
        turns = await voices.turns(speakers)
    segments = [{"start": t.start_s, "end": t.end_s, "speaker": t.speaker} for t in turns]
    names = list(dict.fromkeys(t.speaker for t in turns))
    return json_response({"duration": round(seconds, 3), "num_speakers": len(names), "speakers": names, "segments": segments})
