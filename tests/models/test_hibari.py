"""The voice against ONNX Runtime (golden/hibari_graph.npz), and what `synthesize` promises about words and silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bargein.kernels import cpu, reference
from bargein.models import hibari
from bargein.models.errors import WeightsError
from bargein.models.g2p import pronounce
from bargein.models.store import path

GOLDEN = Path(__file__).parent / "golden" / "hibari_graph.npz"


@pytest.fixture(scope="module")
def voice() -> hibari.Model:
    return hibari.load(path("hibari-heart"))


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return dict(np.load(GOLDEN))


def run(voice: hibari.Model, ids: np.ndarray, ops: Any = cpu) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cfg, w = voice.config, voice.weights
    encoded = hibari.encode_text(w, "pn.", ids, cfg.prosody_attention_passes, cfg, ops)
    frames = hibari.durations(w, encoded, 1.0, ops)
    acoustic = hibari.encode_text(w, "m.", ids, cfg.acoustic_attention_passes, cfg, ops)
    f0, voicing = hibari.prosody(w, encoded, frames, cfg, ops)
    state = hibari.DecoderState(w, hibari.decoder_input(acoustic, frames, f0, voicing), cfg, ops)
    return frames, f0, hibari.decode_frames(w, state, state.frames, ops)


@pytest.mark.parametrize("number", range(4))
def test_agrees_with_onnx_runtime(voice: hibari.Model, golden: dict[str, Any], number: int) -> None:
    frames, f0, head = run(voice, golden[f"{number}/ids"].astype(np.int64))
    assert frames.tolist() == golden[f"{number}/frames"].tolist()
    shipped = golden[f"{number}/shipped_frames"]
    assert np.abs(frames - shipped).max() <= 1 and np.mean(frames == shipped) > 0.95
    np.testing.assert_allclose(f0, golden[f"{number}/f0"], atol=0.1)  # Hz
    np.testing.assert_allclose(head[::9, ::13], golden[f"{number}/head"], atol=0.02)  # nats and radians


def test_waveform_agrees_with_the_packages_vocoder(voice: hibari.Model, golden: dict[str, Any]) -> None:
    _, f0, head = run(voice, golden["0/ids"].astype(np.int64))
    silence = np.zeros((len(head), voice.config.bins), np.complex64)
    audio = hibari.Vocoder(f0, 0, voice.config).samples(head, silence)
    expected = golden["0/audio"].astype(np.float32)
    assert audio.shape == expected.shape
    noise = np.sum((audio - expected) ** 2) / np.sum(expected**2)
    assert 10 * np.log10(noise) < -30


def test_unknown_words_read_as_the_packages_net_reads_them(voice: hibari.Model, golden: dict[str, Any]) -> None:
    oov = voice.pronouncer.g2p.oov
    assert [oov(str(word)) for word in golden["words"]] == golden["readings"].tolist()


def test_chunks_join_to_the_whole(voice: hibari.Model) -> None:
    cfg, w = voice.config, voice.weights
    draw = np.random.default_rng(0)
    encoded = draw.standard_normal((12, cfg.acoustic_width)).astype(np.float32)
    x = hibari.DecoderInput(encoded, draw.integers(0, 12, 101), draw.standard_normal((101, 2)).astype(np.float32))
    whole = hibari.decode_frames(w, hibari.DecoderState(w, x, cfg), 101)
    for size in (1, 4, 30):
        state = hibari.DecoderState(w, x, cfg)
        parts = []
        while not state.done:
            parts.append(hibari.decode_frames(w, state, size))
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_cpu_agrees_with_the_reference_ops(voice: hibari.Model, golden: dict[str, Any]) -> None:
    ids = golden["0/ids"].astype(np.int64)[:12]
    for fast, plain in zip(run(voice, ids), run(voice, ids, reference), strict=True):
        np.testing.assert_allclose(fast, plain, atol=0.02)


TEXT = "Dr. Smith paid $5.50 for 98.6 zorblaxes 🙂 — at 7:30 pm. See example.com, please!"


def test_every_word_of_the_text_has_its_time(voice: hibari.Model) -> None:
    speech = hibari.synthesize(voice, TEXT)
    assert [word.text for word in speech.words] == TEXT.split()
    assert speech.audio.dtype == np.float32 and np.abs(speech.audio).max() < 1.5
    last = 0.0
    for word in speech.words:
        assert last - 1e-6 <= word.start_s <= word.end_s
        last = word.end_s
    assert last <= len(speech.audio) / 24000 + 0.02
    length = {word.text: word.end_s - word.start_s for word in speech.words}
    assert length["🙂"] == length["—"] == 0
    assert length["$5.50"] > 1.0 and length["98.6"] > 0.7


def test_silence_around_speech_is_short(voice: hibari.Model) -> None:
    for text in ("Yes.", "Sure, I can help you with that right away."):
        audio = hibari.synthesize(voice, text).audio
        loud = np.flatnonzero(np.abs(audio) > 0.02) / 24000
        assert loud[0] < 0.12
        assert len(audio) / 24000 - loud[-1] < 0.35
        assert np.abs(audio[: int(0.010 * 24000)]).max() < 0.01


def test_steps_are_deterministic_and_seeded(voice: hibari.Model) -> None:
    first, again = (hibari.synthesize(voice, "Hello there.", seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.audio, again.audio)
    assert not np.array_equal(first.audio, hibari.synthesize(voice, "Hello there.", seed=4).audio)
    slow = hibari.synthesize(voice, "Hello there.", speed=0.7)
    assert len(slow.audio) > len(first.audio)


ODD = ["", "   ", "🙂", "—", "...", "'", "_ _", "x" * 500, "[a](b) {c} <d>", "日本語", "a\x00b"]


@pytest.mark.parametrize("text", ODD)
def test_any_text_is_spoken_or_silent(voice: hibari.Model, text: str) -> None:
    speech = hibari.synthesize(voice, text)
    assert [word.text for word in speech.words] == text.split()
    assert np.isfinite(speech.audio).all()


def test_titles_and_initials_do_not_end_a_sentence(voice: hibari.Model) -> None:
    assert len(pronounce(voice.pronouncer, "Dr. Smith met J. K. Rowling. They talked.")) == 2


def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config\.json: .*bargein models pull"):
        hibari.load(tmp_path)
