"""Silero VAD, smart-turn and Whisper against their oracles' recorded answers, and what damaged files get.

Tests that need weights are skipped when the cache lacks them (`bargein models pull`).
"""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bargein.kernels import reference
from bargein.models import convert_ears, silero, smart_turn, store, whisper, whisper_decode, whisper_stream
from bargein.models.errors import WeightsError
from bargein.models.readers_ct2 import read_ct2
from bargein.models.readers_onnx import dequantize, read_onnx


def _parity() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parity_ears", Path(__file__).with_name("parity_ears.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


parity = _parity()


def weights(name: str) -> Path:
    return store.path(name)


# --- voice activity and end of turn ----------------------------------------------------------------------------------


def test_vad_sessions_do_not_see_each_other() -> None:
    w = silero.load(weights("silero-vad"))
    x = np.random.default_rng(0).normal(0, 0.1, (5, 3, 512)).astype(np.float32)
    together, alone = silero.init_state(5), [silero.init_state(1) for _ in range(5)]
    for t in range(3):
        prob, together = silero.step(w, together, x[:, t])
        for i in range(5):
            single, alone[i] = silero.step(w, alone[i], x[i : i + 1, t])
            assert single[0] == prob[i]


def test_vad_hears_speech_and_not_silence() -> None:
    w = silero.load(weights("silero-vad"))
    speech, state, probs = parity.read_wav(parity.CLIPS[0]), silero.init_state(1), []
    for at in range(0, len(speech) - 511, 512):
        prob, state = silero.step(w, state, speech[None, at : at + 512])
        probs.append(float(prob[0]))
    assert np.mean(np.array(probs) > 0.5) > 0.6
    prob, _ = silero.step(w, silero.init_state(1), np.zeros((1, 512), np.float32))
    assert prob[0] < 0.1


def test_turn_batch_is_one_by_one_and_the_definition_agrees() -> None:
    m = smart_turn.load(weights("smart-turn-v3"))
    sounds = [parity.read_wav(p) for p in parity.CLIPS[:2]]
    singly = [smart_turn.predict(m, s) for s in sounds]
    assert smart_turn.predict_batch(m, sounds) == singly
    assert smart_turn.predict(m, sounds[1], reference) == pytest.approx(singly[1], abs=2e-3)
    assert singly[0] > 0.9 and smart_turn.predict(m, sounds[0][:32000]) < 0.1


def test_turn_takes_silence_and_nothing() -> None:
    m = smart_turn.load(weights("smart-turn-v3"))
    for sound in (np.zeros(0, np.float32), np.zeros(1000, np.float32)):
        assert 0 <= smart_turn.predict(m, sound) <= 1


# --- Whisper ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> whisper.Model:
    return whisper.load(weights("whisper-tiny-en"))


@pytest.fixture(scope="module")
def base() -> whisper.Model:
    return whisper.load(weights("whisper-base"))


DATA = Path(__file__).resolve().parent.parent / "data"
TEXT = "He might even have been made amiable himself."


def test_transcribes_in_a_short_window(tiny: whisper.Model) -> None:
    heard = whisper_stream.transcribe(tiny, parity.read_wav(parity.CLIPS[4]), whisper_stream.Options())
    assert heard.text == TEXT
    assert heard.avg_logprob > -0.5 and heard.no_speech_prob < 0.3 and heard.stable_chars == len(TEXT)


def test_a_draft_changes_nothing_but_the_time(tiny: whisper.Model) -> None:
    mel = whisper.log_mel(parity.read_wav(parity.CLIPS[4]), 600)
    x = whisper.cross(tiny, whisper.encode(tiny, mel))
    plain = whisper_decode.decode(tiny, x, whisper_decode.Options(beam=1))
    for draft in (plain.tokens, (*plain.tokens[:3], 11, *plain.tokens[3:]), (11, 12, 13), (*plain.tokens, 11, 11)):
        assert whisper_decode.decode(tiny, x, whisper_decode.Options(beam=1, draft=draft)).tokens == plain.tokens


def test_growing_sound_gives_partials_and_silence_keeps_the_final(tiny: whisper.Model) -> None:
    audio = parity.read_wav(parity.CLIPS[4])
    state = whisper_stream.StreamState(tiny, whisper_stream.Options())
    for start in range(0, len(audio), 16000):
        state.feed(audio[start : start + 16000])
        partial = state.partial()
    assert partial.text == TEXT
    final = state.final()
    assert final.text == TEXT
    state.feed(np.zeros(16000, np.float32))
    assert state.final() is final


def test_long_sound_is_cut_at_a_silence(tiny: whisper.Model) -> None:
    order = [0, 2, 3, 4, 0, 3]
    audio = np.concatenate([np.pad(parity.read_wav(parity.CLIPS[i]), (0, 6400)) for i in order])
    text = whisper_stream.transcribe(tiny, audio, whisper_stream.Options()).text.lower()
    assert len(audio) > 30 * 16000
    assert text.count("leisure to consider") == 2 and text.count("amiable woman") == 2 and text.count("himself") == 1


@pytest.mark.parametrize("kind", ["silence", "hiss", "nothing"])
def test_what_is_no_speech_gives_little_text(tiny: whisper.Model, kind: str) -> None:
    n = 0 if kind == "nothing" else 32000
    level = 0.02 if kind == "hiss" else 0.0
    sound = np.random.default_rng(0).normal(0, level, n).astype(np.float32)
    heard = whisper_stream.transcribe(tiny, sound, whisper_stream.Options())
    assert len(heard.text.split()) <= 4


def test_timestamps_come_in_order(tiny: whisper.Model) -> None:
    mel = whisper.log_mel(parity.read_wav(parity.CLIPS[0]), 3000)
    x = whisper.cross(tiny, whisper.encode(tiny, mel))
    r = whisper_decode.decode(tiny, x, whisper_decode.Options(beam=1, timestamps=True))
    assert r.segments and all(0 <= s.start_s <= s.end_s <= 30 for s in r.segments)
    assert " ".join(s.text for s in r.segments) == r.text


def test_unknown_language_or_task_is_refused(tiny: whisper.Model) -> None:
    with pytest.raises(ValueError, match="language"):
        whisper_stream.with_context(tiny, whisper_stream.Options(), "xx", None)
    with pytest.raises(ValueError, match="task"):
        whisper_decode.prompt_tokens(tiny, whisper_decode.Options(task="sing"))


# --- readers ---------------------------------------------------------------------------------------------------------


def ct2_bytes() -> bytes:
    def string(s: str) -> bytes:
        return struct.pack("<H", len(s) + 1) + s.encode() + b"\0"

    data = np.arange(6, dtype=np.float16).reshape(2, 3)
    variable = string("a/weight") + struct.pack("<BII", 2, 2, 3) + struct.pack("<BI", 4, 12) + data.tobytes()
    head = struct.pack("<I", 6) + string("WhisperSpec") + struct.pack("<II", 3, 1)
    return head + variable + struct.pack("<I", 1) + string("b/weight") + string("a/weight")


def test_reads_a_model_bin_in_parts(tmp_path: Path) -> None:
    raw = ct2_bytes()
    first, second = tmp_path / "m.part1", tmp_path / "m.part2"
    first.write_bytes(raw[:40])
    second.write_bytes(raw[40:])
    file = read_ct2([first, second])
    assert file.spec == "WhisperSpec" and file.revision == 3
    assert np.array_equal(file.variables["b/weight"], np.arange(6).reshape(2, 3))


@pytest.mark.parametrize("damage", ["truncated", "longer", "version", "missing"])
def test_a_damaged_model_bin_is_named(tmp_path: Path, damage: str) -> None:
    path, raw = tmp_path / "model.bin", ct2_bytes()
    damaged = {"truncated": raw[:-5], "longer": raw + b"x", "version": b"\x09" + raw[1:]}
    if damage in damaged:
        path.write_bytes(damaged[damage])
    with pytest.raises(WeightsError, match=r"model\.bin: "):
        read_ct2([path])


def test_damaged_packages_and_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "silero_vad_16k_op15.onnx").write_bytes(b"not a model at all")
    for convert in (convert_ears.convert_silero, convert_ears.convert_smart_turn, convert_ears.convert_whisper):
        with pytest.raises(WeightsError):
            convert(tmp_path, tmp_path)
    with pytest.raises(WeightsError, match=r"silero_vad_16k_op15\.onnx"):
        read_onnx(tmp_path / "silero_vad_16k_op15.onnx")
    for load in (silero.load, smart_turn.load, whisper.load):
        with pytest.raises(WeightsError, match=r"config\.json"):
            load(tmp_path)


def test_dequantize_per_channel() -> None:
    q = np.array([[1, 2], [3, 4]], np.int8)
    got = dequantize(q, np.array([2.0, 0.5], np.float32), np.array([0, 2], np.int8), axis=0)
    assert np.array_equal(got, np.array([[2, 4], [0.5, 1]], np.float32))


@pytest.mark.parametrize("lead_s", [0.0, 0.7, 1.2, 3.0])
@pytest.mark.parametrize("tail_s", [0.0, 0.5, 2.0])
def test_silence_around_speech_changes_no_word(base: whisper.Model, lead_s: float, tail_s: float) -> None:
    sound = parity.read_wav(DATA / "questions" / "capital.wav")
    padded = np.concatenate([np.zeros(int(lead_s * 16000)), sound, np.zeros(int(tail_s * 16000))]).astype(np.float32)
    assert whisper_stream.transcribe(base, padded, whisper_stream.Options()).text == "What is the capital of France?"
