"""The engine's lanes on a device (kernels interpreted, the stand-in's arrays) give what they give on the CPU.

Tiny random checkpoints of two layers; each lane is asked the same twice.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as kinds

from bargein.engine import protocol as p
from bargein.engine.build import assemble, pages_for
from bargein.engine.device import DeviceError
from bargein.engine.lane import Stream, Together
from bargein.engine.lanes.chat import ChatLane
from bargein.engine.lanes.embed import EmbedLane
from bargein.engine.lanes.stt import SttLane
from bargein.engine.lanes.tts import TtsLane
from bargein.engine.lanes.turn import TurnLane
from bargein.engine.lanes.vad import VadLane
from bargein.kernels import cpu
from bargein.kernels.gpu.interpret import Interpreter
from bargein.kernels.gpu.ops import Ops
from bargein.kernels.gpu.standin import StandIn
from bargein.models import ge2e, hibari, minilm, smart_turn, store, whisper, whisper_stream
from bargein.models.decoder_gpu import DeviceDecoder, DevicePool
from bargein.models.tokenizer import TextCodec

from .conftest import long
from .test_decoder import GEMMA, random_model

RNG = np.random.default_rng(11)
NOISE = (0.1 * np.random.default_rng(2).standard_normal(9600)).astype(np.float32)


@pytest.fixture
def ops() -> Ops:
    return Ops(StandIn(), Interpreter())


def weight(*shape: int) -> np.ndarray:
    """About as large as trained ones: results neither vanish nor explode."""
    spread = np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1
    return (RNG.standard_normal(shape) * spread).astype(np.float32)


def ask(lane: Any, name: Any, body: Any, *before: Any, params: dict[str, Any] | None = None) -> list[Any]:
    """All that a lane answers to one request."""
    got: list[Any] = []
    stream = Stream(1, name, params or {}, "live", lambda reply: got.append(reply), credit=10_000)
    lane.open(stream)
    for tag, request in enumerate((*before, body)):
        steps, result = lane.start(stream, tag, request), None
        while steps is not None:
            try:
                wanted = steps.send(result)
            except StopIteration:
                break
            result = lane.together(wanted.kind, [wanted.item])[0] if isinstance(wanted, Together) else None
    lane.close(stream)
    assert all(isinstance(reply, p.Result) for reply in got), got
    return [reply.body for reply in got]


# -- hearing ------------------------------------------------------------------------------------------------------------


def tiny_whisper(folder: Path) -> whisper.Model:
    names = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
             "<|nospeech|>", "<|notimestamps|>"]  # fmt: skip
    vocab = {f"w{i}": i for i in range(60)} | {name: 60 + i for i, name in enumerate(names)}
    vocab |= {f"<|{i * 0.02:.2f}|>": 68 + i for i in range(41)}
    cfg = dict(width=32, heads=2, encoder_layers=2, decoder_layers=2, mels=80, audio_positions=40, text_positions=40,
               vocab=len(vocab), suppress=[5], suppress_begin=[60], alignment_heads=[[1, 0], [1, 1]])  # fmt: skip
    Tokenizer(kinds.WordLevel(vocab, "w0")).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(cfg))
    built = whisper.Config(**cfg)  # type: ignore[arg-type]
    tensors = {name: weight(*shape) for name, shape in whisper._shapes(built).items()}
    tensors |= {name: 1 + tensors[name] for name in tensors if name.endswith("gamma")}
    save_file(tensors, str(folder / "model.safetensors"))
    return whisper.load(folder)


def on_device(model: Any, ops: Ops, *names: str) -> Any:
    return model._replace(**{name: ops.place(getattr(model, name)) for name in names})


def test_hearing(ops: Ops, tmp_path: Path) -> None:
    model = tiny_whisper(tmp_path)
    options = whisper_stream.Options(beam=2, sure_logprob=None, temperatures=(0.0,), tokens_per_s=1.0)
    fed, body = p.Audio(NOISE.tobytes()), p.Transcribe(len(NOISE), len(NOISE))
    (want,) = ask(SttLane(model, options), "stt", body, fed)
    (got,) = ask(SttLane(on_device(model, ops, "w", "q"), options, ops), "stt", body, fed)
    assert want.text and got.text == want.text
    assert got.avg_logprob == pytest.approx(want.avg_logprob, abs=0.01)
    assert got.no_speech_prob == pytest.approx(want.no_speech_prob, rel=0.05)


@long
def test_hearing_a_recording_with_word_times(ops: Ops, tmp_path: Path) -> None:
    model = tiny_whisper(tmp_path)
    body = p.Hear(NOISE.tobytes(), language="en", temperature=0.0, words=True, text="w1 w2 w3")
    (want,) = ask(SttLane(model, whisper_stream.Options()), "stt", body)
    (got,) = ask(SttLane(on_device(model, ops, "w", "q"), whisper_stream.Options(), ops), "stt", body)
    assert [w[:3] for w in map(dataclasses_free, got.words)] == [w[:3] for w in map(dataclasses_free, want.words)]


def dataclasses_free(word: Any) -> tuple[Any, ...]:
    return tuple(getattr(word, name) for name in word.__struct_fields__)


def test_the_end_of_a_turn(ops: Ops, tmp_path: Path) -> None:
    cfg = smart_turn.Config(32, 2, 2, 80, 1)
    tensors: dict[str, np.ndarray] = {}
    for name, shape in smart_turn._shapes(cfg).items():
        if name.endswith("_scale"):
            continue
        tensors[name] = weight(*shape) + (1 if "norm" in name and name.endswith(".weight") else 0)
        if f"{name}_scale" in smart_turn._shapes(cfg):
            flat, scale = cpu.quantize_rows(tensors[name].reshape(shape[0], -1))
            tensors[name], tensors[f"{name}_scale"] = flat.reshape(shape), scale
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(cfg)))
    model, body = smart_turn.load(tmp_path), p.AskTurn(NOISE.tobytes())
    (want,) = ask(TurnLane(model), "turn", body)
    (got,) = ask(TurnLane(on_device(model, ops, "w", "q"), ops), "turn", body)
    assert 0.02 < want.p < 0.98 and got.p == pytest.approx(want.p, abs=2e-3)


def test_voice_activity(ops: Ops) -> None:
    w = cpu.VadWeights(
        weight(258, 256), weight(128, 3, 129), weight(128), weight(64, 3, 128), weight(64), weight(64, 3, 64), weight(64),
        weight(128, 3, 64), weight(128), weight(512, 256), weight(512), weight(1, 128)[0], weight(1),
    )  # fmt: skip
    heard = []
    for lane in (VadLane(w), VadLane(ops.place(w), ops)):
        got: list[Any] = []
        streams = [Stream(i, "vad", {}, "live", lambda reply: got.append(reply), credit=100) for i in range(2)]  # noqa: B023
        for i, stream in enumerate(streams):
            lane.open(stream)
            lane.feed(stream, 0, NOISE[i * 100 : i * 100 + 1024].tobytes(), 0.0)
        while lane.run_batch():
            pass
        heard.append([reply.body.probs for reply in got])
    assert len(heard[0]) == 4
    np.testing.assert_allclose(heard[1], heard[0], atol=1e-5)


# -- speaking -----------------------------------------------------------------------------------------------------------


def test_speech(ops: Ops) -> None:
    real = hibari.load(store.path("hibari-heart"))
    cfg = real.config._replace(
        acoustic_attention_passes=1, prosody_attention_passes=1, acoustic_width=16, prosody_width=16, decoder_width=32,
        decoder_layers=2, prosody_dilations=(1, 2), text_layers=1, hop=20, n_fft=80,
    )  # fmt: skip
    raw: dict[str, Any] = {}
    for name, shape in hibari.expected_shapes(cfg).items():
        raw[name] = weight(*shape)
        if name.endswith("norm.weight") or "norm1.weight" in name or "norm2.weight" in name:
            raw[name] += 1
        elif len(shape) == 2 and "emb" not in name:
            raw[name] = cpu.pack_rows(*cpu.quantize_rows(np.ascontiguousarray(raw[name].T)))
    raw["pn.dur.2.bias"][:] = np.log(2.4)  # a frame and a half, away from where it rounds
    raw["pn.pro_out.bias"][:2] = 1.5  # 150 Hz, always: the phase of its 73rd harmonic magnifies a difference of pitch
    raw["pn.pro_out.weight"][:2] = 0
    model = real._replace(config=cfg, weights=hibari._time_major(raw))
    body = p.Say(("Hello", " there"), 1.0)
    want = ask(TtsLane(model), "tts", body)
    got = ask(TtsLane(on_device(model, ops, "weights"), ops), "tts", body)
    sounds = [np.concatenate([np.frombuffer(s.pcm, np.float32) for s in said]) for said in (want, got)]
    assert len(sounds[0]) > 200
    assert [s.times_ms for s in got] == [s.times_ms for s in want]
    assert np.linalg.norm(sounds[1] - sounds[0]) < 0.01 * np.linalg.norm(sounds[0])


# -- words --------------------------------------------------------------------------------------------------------------


def byte_codec() -> TextCodec:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(kinds.BPE({c: i for i, c in enumerate(["<end>", "<begin>", *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextCodec(tokenizer, 1, frozenset({0}), {})


def test_writing(ops: Ops) -> None:
    cfg = dataclasses.replace(GEMMA, vocab=258)
    model, codec = random_model(cfg), byte_codec()
    body = p.Write(prompt="Hi there", max_tokens=5, temperature=0.0, logprobs=2)
    lane = ChatLane(model, codec)
    lane.prepare()
    want = ask(lane, "chat", body)
    graph = DeviceDecoder(ops, DevicePool(cfg, ops, 8))
    placed = model._replace(weights=ops.place(model.weights))
    lane = ChatLane(placed, codec, graph)
    lane.prepare()
    got = ask(lane, "chat", body)
    tokens = [[score.raw for piece in said if isinstance(piece, p.Token) for score in piece.scores] for said in (want, got)]
    assert len(tokens[0]) >= 4 and tokens[1] == tokens[0]
    chances = [[s.logprob for piece in said if isinstance(piece, p.Token) for s in piece.scores] for said in (want, got)]
    np.testing.assert_allclose(chances[1], chances[0], atol=0.05)
    assert got[-1] == want[-1]


def test_vectors_of_texts(ops: Ops) -> None:
    cfg = minilm.Config(32, 2, 2, 64, 100, 64, 1e-12)
    w = {name: weight(*shape) + (1 if "LayerNorm.weight" in name else 0) for name, shape in minilm.expected_shapes(cfg).items()}
    model = minilm.Model(cfg, {k: np.asarray(v, np.float32) for k, v in w.items()}, None, 1, 2)  # type: ignore[arg-type]
    vectors = []
    for lane in (EmbedLane(model, None), EmbedLane(on_device(model, ops, "w"), None, ops)):  # type: ignore[arg-type]
        lane._texts = lane._texts._replace(tokenizer=None)
        (answer,) = ask(lane, "embed", p.Embed(((5, 9, 33, 71), (8,))))
        vectors.append(np.frombuffer(answer.data, np.float32))
    np.testing.assert_allclose(vectors[1], vectors[0], atol=1e-3)


@long
def test_vectors_of_voices(ops: Ops) -> None:
    w = {name: weight(*shape) for name, shape in ge2e.expected_shapes().items()}
    model = ge2e.Model(w, ge2e.cpu.mel_filters(16000, 400, 40))
    frames = np.abs(weight(1, 2, 40))
    np.testing.assert_allclose(ge2e.embed(on_device(model, ops, "w"), frames, ops), ge2e.embed(model, frames), atol=1e-4)


# -- together -----------------------------------------------------------------------------------------------------------


def test_what_a_budget_holds() -> None:
    page = DevicePool.bytes_of_page(GEMMA)
    assert page == 2 * 2 * 16 * 1 * 16 * 2
    assert pages_for(GEMMA, 100 * page) == 100
    with pytest.raises(DeviceError, match="raise --gpu-memory"):
        pages_for(GEMMA, 31 * page)


def test_an_engine_is_put_together_on_a_device(ops: Ops) -> None:
    """The real checkpoints, all placed; nothing is computed."""
    names = {"stt": "whisper-tiny-en", "turn": "smart-turn-v3", "chat": "smollm2-135m", "tts": "hibari-heart",
             "embed": "all-minilm-l6-v2", "voice": "ge2e", "vad": "silero-vad"}  # fmt: skip
    folders = {task: store.path(name) for task, name in names.items()}
    with pytest.raises(DeviceError, match="are left for the chat cache"):
        assemble(folders, ops, 1200 << 20)
    fresh = Ops(StandIn(), Interpreter())
    lanes = assemble(folders, fresh, 3 << 30)._lanes
    assert sorted(lanes) == ["chat", "embed", "stt", "tts", "turn"]
    graph = lanes["chat"]._graph
    assert isinstance(graph, DeviceDecoder)
    taken = graph.pool.num_free * DevicePool.bytes_of_page(lanes["chat"]._model.config) + fresh.num_bytes
    assert (1800 << 20) < taken <= 2 << 30  # the budget less the workspace
