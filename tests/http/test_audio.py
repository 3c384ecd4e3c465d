"""Speech, transcriptions, alignments and voices through the stock SDK: what is heard, when, and by whom."""

from __future__ import annotations

import base64
import io
import json
import re
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soxr
from openai.types.audio import TranscriptionStreamEvent, TranscriptionVerbose, Translation
from openai.types.audio.transcription_diarized import TranscriptionDiarized

from bargein.models.bench_words import normal_words, word_errors

from .conftest import DATA, Served
from .strict import fits, sse

AUSTEN = {
    "0870": "and mister john dashwood had then leisure to consider how much there might be prudently in his power to do for "
    "them",
    "0880": "he was not an ill disposed young man",
    "0920": "had he married a more amiable woman he might have been made still more respectable than he was",
}
PHRASE = "The quick brown fox jumps over the lazy dog."


def clip(name: str, rate: int = 16000) -> np.ndarray:
    """A test file as float32 mono at `rate`."""
    with wave.open(str(DATA / f"{name}.wav")) as w:
        x = np.frombuffer(w.readframes(w.getnframes()), "<i2").astype(np.float32) / 32768
        x = x.reshape(-1, w.getnchannels()).mean(1)
        return soxr.resample(x, w.getframerate(), rate)


def as_wav(x: np.ndarray, rate: int = 16000, channels: int = 1) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(channels)
        w.setsampwidth(2)
        w.setframerate(rate)
        w.writeframes((np.clip(x, -1, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def errors(said: str, truth: str) -> int:
    """Words that differ."""
    return word_errors(normal_words(said), normal_words(truth))


@pytest.mark.parametrize("fmt", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_speech_is_heard_again_in_every_format(client: openai.OpenAI, fmt: str) -> None:
    said = client.audio.speech.create(model="tts-1", voice="alloy", input=PHRASE, response_format=fmt).content
    if fmt == "pcm":
        said = as_wav(np.frombuffer(said, "<i2").astype(np.float32) / 32768, 24000)
    heard = client.audio.transcriptions.create(file=("speech", said), model="whisper-1", language="en")
    assert errors(heard.text, PHRASE) == 0, heard.text


def test_speed_and_the_first_byte(client: openai.OpenAI) -> None:
    long = " ".join([PHRASE] * 12)
    lengths = {}
    for speed in (0.5, 1.0, 2.0):
        lengths[speed] = len(client.audio.speech.create(
            model="tts-1", voice="nova", input=PHRASE, response_format="pcm", speed=speed).content)  # fmt: skip
    assert lengths[0.5] > 1.6 * lengths[1.0] and lengths[2.0] < 0.65 * lengths[1.0]
    started, first = time.monotonic(), 0.0
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="nova", input=long, response_format="pcm"
    ) as r:
        for _ in r.iter_bytes(1024):
            first = first or time.monotonic() - started
    assert first < 0.5 * (time.monotonic() - started)


def test_speech_as_events(client: openai.OpenAI) -> None:
    plain = client.audio.speech.create(model="tts-1", voice="alloy", input=PHRASE, response_format="pcm").content
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=PHRASE, response_format="pcm", stream_format="sse"
    ) as r:
        events = sse(r.read().decode())
    assert b"".join(base64.b64decode(e["audio"]) for e in events[:-1]) == plain
    assert events[-1]["type"] == "speech.audio.done"


@pytest.mark.parametrize("name", AUSTEN)
def test_what_is_said_and_when(client: openai.OpenAI, name: str) -> None:
    raw = client.audio.transcriptions.with_raw_response.create(
        file=(DATA / f"austen-{name}.wav").open("rb"), model="whisper-1", response_format="verbose_json",
        timestamp_granularities=["word", "segment"], temperature=0,
    )  # fmt: skip
    body = fits(TranscriptionVerbose, raw.http_response.content)
    assert errors(body.text, AUSTEN[name]) <= 1 and body.language == "english"
    length = len(clip(f"austen-{name}")) / 16000
    assert body.duration == pytest.approx(length, abs=0.01)
    assert body.words and body.segments and "".join(s.text for s in body.segments).split() == body.text.split()
    assert [w.word for w in body.words] == body.text.split()
    assert all(0 <= w.start < w.end <= length for w in body.words)
    loud = np.abs(clip(f"austen-{name}")) > 0.03
    assert body.words[0].start == pytest.approx(loud.argmax() / 16000, abs=0.12)
    assert all(a.end <= b.start + 0.02 for a, b in zip(body.words, body.words[1:], strict=False))


def test_word_times_move_with_the_sound(client: openai.OpenAI) -> None:
    x = clip("austen-0920")
    times = []
    for before in (0.0, 3.0):
        body: Any = client.audio.transcriptions.create(
            file=("a.wav", as_wav(np.concatenate([np.zeros(int(16000 * before), np.float32), x]))), model="whisper-1",
            language="en", response_format="verbose_json", timestamp_granularities=["word"],
        )  # fmt: skip
        times.append([w.start - before for w in body.words])
    assert len(times[0]) == len(times[1])
    assert np.median(np.abs(np.subtract(*times))) <= 0.06


def test_subtitles_and_text(client: openai.OpenAI) -> None:
    def get(fmt: str) -> str:
        file = (DATA / "austen-0880.wav").open("rb")
        return str(client.audio.transcriptions.create(file=file, model="whisper-1", response_format=fmt))

    assert errors(get("text"), AUSTEN["0880"]) <= 1
    assert re.fullmatch(r"1\n00:00:00,\d{3} --> 00:00:0[23],\d{3}\nHe was [^\n]+\n", get("srt"))
    assert re.fullmatch(r"WEBVTT\n\n00:00:00\.\d{3} --> 00:00:0[23]\.\d{3}\nHe was [^\n]+\n", get("vtt"))


def test_a_stream_says_the_same_and_begins_early(client: openai.OpenAI) -> None:
    long = np.concatenate([np.pad(clip(f"austen-{n}"), (0, 8000)) for n in ("0870", "0880", "0890", "0920", "0930")])
    data = as_wav(np.concatenate([long, long]))
    whole = client.audio.transcriptions.create(file=("a.wav", data), model="whisper-1", language="en").text
    started, first = time.monotonic(), 0.0
    with client.audio.transcriptions.with_streaming_response.create(
        file=("a.wav", data), model="whisper-1", language="en", stream=True
    ) as r:
        lines = []
        for line in r.iter_lines():
            first = first or (time.monotonic() - started if line.startswith("data:") else 0.0)
            lines.append(line)
    total = time.monotonic() - started
    events = sse("\n".join(lines))
    for e in events:
        fits(TranscriptionStreamEvent, json.dumps(e))
    assert "".join(e["delta"] for e in events[:-1]) == events[-1]["text"]
    # The two are cut in different places, where a word or two may come out otherwise.
    assert errors(events[-1]["text"], whole) <= 3
    assert first < 0.6 * total


def test_silence_and_noise_say_nothing(client: openai.OpenAI) -> None:
    noise = np.random.default_rng(1).normal(0, 0.02, 16000 * 4).astype(np.float32)
    for sound in (np.zeros(16000 * 5, np.float32), noise):
        body: Any = client.audio.transcriptions.create(
            file=("a.wav", as_wav(sound)), model="whisper-1", response_format="verbose_json"
        )
        assert body.text == "" and body.segments == [] and body.duration == pytest.approx(len(sound) / 16000)


def test_any_container(client: openai.OpenAI, tmp_path: Path) -> None:
    import av

    x = (clip("austen-0880", 48000) * 32767).astype("<i2").reshape(1, -1)
    for name, codec, rate in (("a.m4a", "aac", 48000), ("a.webm", "libopus", 48000), ("a.mka", "pcm_s16le", 48000),
                              ("a.ogg", "libopus", 48000), ("a.wav", "pcm_mulaw", 8000)):  # fmt: skip
        path = tmp_path / name
        with av.open(str(path), "w") as out:
            stream = out.add_stream(codec, rate=rate, layout="mono")
            frame = av.AudioFrame.from_ndarray(x, format="s16", layout="mono")
            frame.sample_rate = 48000
            resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate)
            for piece in [*resampler.resample(frame), *resampler.resample(None)]:
                out.mux(stream.encode(piece))
            out.mux(stream.encode(None))
        said = client.audio.transcriptions.create(file=("blob", path.read_bytes()), model="whisper-1").text
        assert errors(said, AUSTEN["0880"]) <= 1, (name, said)


def test_translation(client: openai.OpenAI) -> None:
    raw = client.audio.translations.with_raw_response.create(file=(DATA / "austen-0880.wav").open("rb"), model="whisper-1")
    assert errors(fits(Translation, raw.http_response.content).text, AUSTEN["0880"]) <= 1


def test_refusals_of_forms(client: openai.OpenAI, server: Served) -> None:
    def refuse(param: str | None, **change: Any) -> None:
        ask: dict[str, Any] = {"file": ("a.wav", as_wav(np.zeros(1600))), "model": "whisper-1"} | change
        with pytest.raises(openai.BadRequestError) as refused:
            client.audio.transcriptions.create(**ask)
        assert refused.value.param == param, refused.value.body

    refuse("language", language="klingon")
    refuse("temperature", temperature=7)
    refuse("response_format", response_format="docx")
    refuse("timestamp_granularities", timestamp_granularities=["word"])
    refuse("include", include=["logprobs"])
    refuse("response_format", response_format="srt", stream=True)
    refuse("volume", extra_body={"volume": 11})
    refuse("model", model="tts-1")


def test_alignment_of_a_known_text(server: Served) -> None:
    client = server.openai()
    text = "Had he married a more amiable woman, he might have been made still more respectable than he was."
    body: Any = client.post(
        "/audio/alignments", cast_to=object, body={"text": text, "model": "whisper-1", "language": "en"},
        files=[("file", ("a.wav", (DATA / "austen-0920.wav").read_bytes()))],
        options={"headers": {"Content-Type": "multipart/form-data"}},
    )  # fmt: skip
    assert [w["word"] for w in body["words"]] == text.split()
    starts = [w["start"] for w in body["words"]]
    assert starts == sorted(starts) and starts[0] < 0.6 and 5.0 < body["words"][-1]["end"] <= 6.05


def test_who_speaks_when(server: Served) -> None:
    """Two speakers in turns; times are checked against where each clip's sound is."""
    order = [("A", "austen-0870"), ("B", "questions/capital"), ("A", "austen-0880"), ("B", "questions/week"),
             ("B", "questions/bees"), ("A", "austen-0920"), ("B", "questions/morning"), ("A", "austen-0930")]  # fmt: skip
    parts, truth, at = [], [], 0
    for speaker, name in order:
        x = clip(name)
        x = 0.5 * x / np.abs(x).max()
        loud = np.flatnonzero(np.sqrt(np.convolve(x * x, np.ones(320) / 320, "same")) > 0.02)
        truth.append(((at + loud[0]) / 16000, (at + loud[-1]) / 16000, speaker))
        parts.append(np.pad(x, (0, 4800)))
        at += len(x) + 4800
    data = as_wav(np.concatenate(parts))
    client = server.openai()
    body: Any = client.post(
        "/audio/diarization", cast_to=object, body={"model": "ge2e"}, files=[("file", ("a.wav", data))],
        options={"headers": {"Content-Type": "multipart/form-data"}},
    )  # fmt: skip
    assert body["num_speakers"] == 2 and body["speakers"] == ["A", "B"]
    want, got = np.full(at // 160, " "), np.full(at // 160, " ")
    for start, end, speaker in truth:
        want[int(100 * start) : int(100 * end)] = speaker
    for s in body["segments"]:
        got[int(100 * s["start"]) : int(100 * s["end"])] = s["speaker"]
    assert (want != got).sum() / (want != " ").sum() <= 0.15
    raw = client.audio.transcriptions.with_raw_response.create(
        file=("a.wav", data), model="gpt-4o-transcribe-diarize", response_format="diarized_json"
    )
    segments = fits(TranscriptionDiarized, raw.http_response.content).segments
    assert [s.speaker for s in segments] == ["A", "B", "A", "B", "A", "B", "A"]
    assert segments[2].text.startswith("He was not") and "days" in segments[3].text


def test_voices_are_near_themselves(server: Served) -> None:
    client = server.openai()

    def vector(name: str) -> np.ndarray:
        body: Any = client.post(
            "/audio/embeddings", cast_to=object, body={"model": "ge2e"},
            files=[("file", ("a.wav", (DATA / f"{name}.wav").read_bytes()))],
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )  # fmt: skip
        return np.array(body["data"][0]["embedding"])

    one, same, other = (vector(n) for n in ("austen-0870", "austen-0920", "questions/capital"))
    assert len(one) == 256 and one @ one == pytest.approx(1, abs=1e-4)
    assert one @ same > 0.8 > one @ other


def test_text_vectors(client: openai.OpenAI) -> None:
    texts = ["This is an example sentence", "Each sentence is converted", "A sentence is turned into something else"]
    one = client.embeddings.create(model="text-embedding-3-small", input=texts, encoding_format="float")
    v = np.array([d.embedding for d in one.data])
    # What sentence-transformers prints for its own example.
    np.testing.assert_allclose(v[0][:4], [0.0676569, 0.0634959, 0.0487131, 0.0793050], atol=1e-5)
    np.testing.assert_allclose(v[1][:3], [0.0864386, 0.1027626, 0.0053946], atol=1e-5)
    assert v[1] @ v[2] > v[0] @ v[2] - 0.2
    short = client.embeddings.create(model="text-embedding-3-small", input=texts[0], dimensions=64)
    head = v[0][:64] / np.linalg.norm(v[0][:64])
    np.testing.assert_allclose(short.data[0].embedding, head, atol=1e-5)
    assert one.usage.total_tokens == one.usage.prompt_tokens > 10


def test_chat_hears_and_speaks(client: openai.OpenAI) -> None:
    question = base64.b64encode((DATA / "questions" / "capital.wav").read_bytes()).decode()
    answer = client.chat.completions.create(
        model="gpt-4o-audio-preview", modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"},
        messages=[{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": question, "format": "wav"}}]}],
        temperature=0,
    )  # fmt: skip
    audio = answer.choices[0].message.audio
    assert audio is not None and audio.transcript
    heard = client.audio.transcriptions.create(file=("a.wav", base64.b64decode(audio.data)), model="whisper-1").text
    assert errors(heard, audio.transcript) <= max(1, len(normal_words(audio.transcript)) // 4), (heard, audio.transcript)
