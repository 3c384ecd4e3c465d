"""A listener's sounds, asked about by name: Whisper makes words of them when it hears them alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bargein.client.audio import read_wav
from bargein.kernels import cpu
from bargein.models import store, whisper, whisper_decode, whisper_stream

SOUNDS = Path(__file__).parent.parent / "data" / "sounds"
F32 = np.float32


@pytest.fixture(scope="module")
def model() -> whisper.Model:
    return whisper.load(store.path("whisper-base"))


def padded(x: np.ndarray) -> np.ndarray:
    quiet = np.random.default_rng(0).normal(0, 1e-4, len(x) + 8000)
    quiet[4800 : 4800 + len(x)] += x
    return quiet.astype(F32)


def hum(hz: float) -> np.ndarray:
    """Two hums with closed lips, the second higher."""
    out = []
    for ms, first, last in ((220, hz, 0.95 * hz), (60, 0, 0), (300, 1.25 * hz, 1.1 * hz)):
        n = 16 * ms
        phase = 2 * np.pi * np.cumsum(np.linspace(first, last, n)) / 16000
        edge = np.minimum(1, np.minimum(np.arange(n), np.arange(n)[::-1]) / 320)
        out.append(0.2 * edge * sum(np.sin(k * phase) / k**1.5 for k in range(1, 9)))
    return np.concatenate(out)


def recorded(name: str) -> np.ndarray:
    return read_wav(SOUNDS / f"{name}.wav", 16000).astype(F32) / 32768


def heard(model: whisper.Model, x: np.ndarray) -> whisper_stream.Transcript:
    return whisper_stream.transcribe(model, padded(x), whisper_stream.Options())


def test_texts_are_as_likely_together_as_token_by_token(model: whisper.Model) -> None:
    steps = whisper_stream.encoded_steps(model, padded(recorded("answer-no")), 400)
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        x = stop.value
    prompt = whisper_decode.prompt_tokens(model, whisper_decode.Options(timestamps=True, language="en"))
    texts = [model.tokenizer.encode(t, add_special_tokens=False).ids for t in (" No.", " Mm-hmm.", " That is wrong.")]
    together = whisper_decode.likelihoods(model, x, prompt, texts)
    assert together[0] > max(together[1:]) + 3
    begin, end = model.special.timestamp_begin, model.special.eot
    for text, got in zip(texts, together, strict=True):
        cache, total = whisper.init_cache(model, 1, 32), 0.0
        for at, token in enumerate([*prompt, begin, *text]):
            one = np.array([token], np.int64)
            hidden = whisper.decoder_hidden(model, x, cache, one, np.zeros(1, np.int64), np.array([at], np.int64))
            row = whisper.logits(model, hidden)
            row[:, list(model.cfg.suppress)] = -np.inf
            logs = cpu.log_softmax(row)[0]
            step = at - len(prompt)
            if 0 <= step < len(text):
                total += float(logs[text[step]])
        total += float(np.logaddexp.reduce(np.append(logs[begin:], logs[end])))
        assert got == pytest.approx(total, abs=0.05)


@pytest.mark.parametrize("hz", [240.0, 280.0])
def test_a_hum_that_is_written_as_a_word_was_nearly_a_sound(model: whisper.Model, hz: float) -> None:
    t = heard(model, hum(hz))
    assert not t.text or set(t.near) & set(whisper_stream.LISTENING)


@pytest.mark.parametrize("name", ["answer-no", "interrupt-thats_wrong"])
def test_a_word_was_not(model: whisper.Model, name: str) -> None:
    assert not set(heard(model, recorded(name)).near) & set(whisper_stream.LISTENING)
