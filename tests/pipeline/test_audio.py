"""No seams at chunk borders, G.711 by its standard, the input store by position."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.pipeline.audio import Decoder, Encoder, InputStore
from bargein.pipeline.resampling import Resampler


def sine(hz: float, rate: int, seconds: float = 1.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def purity_db(x: np.ndarray, rate: int, hz: float) -> float:
    """Power of everything but the tone, relative to it."""
    x = x[rate // 4 : rate // 4 + rate // 2] * np.hanning(rate // 2)
    power = np.abs(np.fft.rfft(x)) ** 2
    at = round(hz * len(x) / rate)
    tone = power[at - 5 : at + 6].sum()
    return float(10 * np.log10((power.sum() - tone) / tone))


@pytest.mark.parametrize(("fmt", "rate", "limit"), [("pcm16", 24000, -70), ("pcm16_16k", 16000, -70)])
def test_a_sine_in_20_ms_chunks_has_no_ticks(fmt: str, rate: int, limit: float) -> None:
    pcm = (sine(1000, rate) * 32767).astype("<i2").tobytes()
    step = rate // 50 * 2
    decoder = Decoder(fmt)
    x = np.concatenate([decoder.decode(pcm[n : n + step]) for n in range(0, len(pcm), step)])
    assert purity_db(x, 16000, 1000) < limit


@pytest.mark.parametrize(("source", "target"), [(24000, 16000), (8000, 16000), (24000, 8000)])
def test_resampling_holds_next_to_nothing_back(source: int, target: int) -> None:
    resampler, rng = Resampler(source, target), np.random.default_rng(3)
    sound, parts, num_in = sine(1000, source), [], 0
    while num_in < len(sound):
        n = int(rng.integers(1, source // 40))
        parts.append(resampler.push(sound[num_in : num_in + n], last=num_in + n >= len(sound)))
        num_in = min(num_in + n, len(sound))
        held_ms = 1000 * (num_in / source - sum(map(len, parts)) / target)
        assert held_ms < 3.5, "of sound, between a caller's microphone and the ears"
    made = np.concatenate(parts)
    assert np.abs(made - sine(1000, target))[target // 50 : -target // 50].max() < 1e-3, "in its place, to the sample"
    assert np.allclose(made, Resampler(source, target).push(sound, last=True), atol=1e-6), "whatever the chunks"


@pytest.mark.parametrize(("source", "target", "hz"), [(24000, 16000, 9000), (24000, 8000, 5000)])
def test_what_the_lower_rate_cannot_hold_is_gone(source: int, target: int, hz: float) -> None:
    assert np.abs(Resampler(source, target).push(sine(hz, source))[target // 50 :]).max() < 1e-4


@pytest.mark.parametrize(("fmt", "rate"), [("pcm16", 24000), ("pcm16_16k", 16000), ("g711_ulaw", 8000)])
def test_reply_audio_keeps_its_length_and_tone(fmt: str, rate: int) -> None:
    x = sine(1000, 24000)
    encoder = Encoder(fmt)
    data = b"".join(encoder.encode(x[n : n + 480], last=n + 480 >= len(x)) for n in range(0, len(x), 480))
    assert len(data) == rate * (1 if fmt.startswith("g711") else 2)
    if fmt != "g711_ulaw":
        assert purity_db(np.frombuffer(data, "<i2").astype(np.float64), rate, 1000) < -70


@pytest.mark.parametrize(
    ("fmt", "code", "sample"),
    [("g711_ulaw", 0x00, -32124), ("g711_ulaw", 0x80, 32124), ("g711_ulaw", 0xFF, 0), ("g711_alaw", 0x2A, -32256),
     ("g711_alaw", 0xAA, 32256), ("g711_alaw", 0xD5, 8), ("g711_alaw", 0x55, -8)],
)  # fmt: skip
def test_g711_values_of_the_standard(fmt: str, code: int, sample: int) -> None:
    from bargein.pipeline import audio

    assert audio._DECODE[fmt][code] == sample
    assert audio._DECODE[fmt][audio._ENCODE[fmt][sample + 32768]] == sample


def test_the_store_is_addressed_by_position() -> None:
    store = InputStore(keep_s=0.01)
    x = np.arange(5000, dtype=np.float32)
    for part in np.split(x, 25):
        store.append(part)
        store.drop(store.end)
    assert store.end == 5000
    assert np.array_equal(store.read(4900, 5000), x[4900:])
    assert store.start > 0, "what is not needed goes"
    assert len(store.read(0, 10)) == 0


def test_the_store_keeps_what_was_not_dropped() -> None:
    store = InputStore(keep_s=0.01)
    x = np.arange(5000, dtype=np.float32)
    store.append(x[:3000])
    store.append(x[3000:])
    assert np.array_equal(store.read(0, 5000), x)
