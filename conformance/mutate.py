"""Breaks the machine on purpose, one listed way at a time, in a copied tree, and sees each caught (SPEC section 15.4).

`python -m bargein.conformance.mutate [NAME ...]` runs the fixtures, then `tests/realtime`, against each mutant and prints
a table; 1 where one survives. `--write FILE` keeps the table. Not a part of the tests: it takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 300
WORKERS = 2
SLOW = ("test_echo", "test_fuzz")  # last


@dataclass(frozen=True, slots=True)
class Mutation:
    """`edits`: what to replace with what in a file of `realtime/`; each must be there exactly once."""

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]


def _one(name: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(name, file, ((old, new),))


MUTATIONS: tuple[Mutation, ...] = (
    _one("no hard cap", "turn.py", 'd.arm("hard_cap", stopped.last_voiced_at + cap)', "pass"),
    Mutation(
        "the hard cap clamps the wait instead of racing it",
        "turn.py",
        (
            ('d.arm("hard_cap", stopped.last_voiced_at + cap)', "pass"),
            ('        d.arm("commit", due)\n', '        d.arm("commit", min(due, d.at + 5000))\n'),
        ),
    ),
    _one("delays count from the stop", "question.py", "d.at if eou.stack_silence else vad.last_voiced_at", "d.at"),
    _one("a late verdict counts", "turn.py", "isinstance(vad, Stopped) and vad.ask == ev.ask", "isinstance(vad, Stopped)"),
    _one("a stale transcript is adopted", "turn.py", "    if isinstance(vad, Stopped) and vad.flush == ev.flush:\n"
         "        vad = replace", "    if isinstance(vad, Stopped):\n        vad = replace"),
    _one("a stale timer fires", "machine.py", "if armed is None or armed.token != ev.token:", "if armed is None:"),
    _one("an uncertain classifier commits at once", "question.py", "UNSURE_WAIT_MS = 1000", "UNSURE_WAIT_MS = 0"),
    _one("buffers rotate at the stop", "turn.py", "announce(d, vad.item_id, vad.audio_start_ms, vad.voiced_ms + voiced_ms",
         'announce(d, ItemId(d.fresh("item")), vad.audio_start_ms, vad.voiced_ms + voiced_ms'),
    _one("re-entry forgets where it began", "turn.py", "announce(d, vad.item_id, vad.audio_start_ms, vad.voiced_ms + ",
         "announce(d, vad.item_id, d.s.audio_ms, vad.voiced_ms + "),
    _one("re-entry leaves the timers running", "turn.py",
         '    d.disarm("commit", "hard_cap", "eou_timeout")\n    announce', "    announce"),
    Mutation("the item is added before it is committed", "turn.py", (
        ("    d.emit(a.Committed(sealed.item_id, previous))\n", ""),
        ("    d.emit(a.ItemAdded(item, previous))\n",
         "    d.emit(a.ItemAdded(item, previous))\n    d.emit(a.Committed(sealed.item_id, previous))\n"))),
    _one("too little voice is an utterance", "turn.py", "    if vad.voiced_ms < s.min_speech_ms:", "    if False:"),
    _one("noise is text", "turn.py", 'text = "" if noise else transcript.text.strip()', "text = transcript.text.strip()"),
    _one("no delta before completed", "turn.py", "        if text:\n            d.emit(a.TranscriptionDelta",
         "        if False:\n            d.emit(a.TranscriptionDelta"),
    _one("an empty transcript is answered", "turn.py", "    if text and sealed.answer", "    if sealed.answer"),
    _one("failures of STT never end the session", "turn.py", "if d.s.num_stt_failures >= d.s.limits", "if 0 > d.s.limits"),
    _one("after a manual commit the same speech starts anew", "detector.py", "return replace(d, phase=Deaf())",
         "return replace(d, phase=Quiet())"),
    _one("an empty manual commit makes an item", "turn.py", "if length < max(s.min_speech_ms, 1):", "if False:"),
    _one("detection off leaves the timers running", "sound.py",
         '        d.disarm("commit", "hard_cap", "eou_timeout", *candidate.TIMERS)\n', ""),
    _one("missing input is waited for", "life.py", "    d.do(FeedSilence(missing))\n", ""),
    _one("work of a retired epoch goes out", "flight.py",
         "return resp if resp is not None and resp.plan.epoch == epoch else None", "return resp"),
    _one("epochs stand still", "asking.py", "Epoch(d.s.epoch + 1)", "Epoch(d.s.epoch)"),
    _one("the snapshot is what was written", "ending.py", "snapshot = v.played_at(d.at)", "snapshot = v.written_ms"),
    Mutation("the snapshot is taken after the cancel", "ending.py", (
        ("    d.emit(a.ResponseDone(done))\n    if started and to_the_end:", "    d.emit(a.ResponseDone(done))\n"
         "    snapshot = 0 if isinstance(d.s.resp, Idle) else snapshot\n    if started and to_the_end:"),)),
    _one("what was not heard stays", "ending.py", "said if natural else words_heard(v.words, snapshot)", "said"),
    _one("a truncation also at 0", "ending.py", "    if snapshot > 0:\n        d.emit(a.ItemTruncated", "    if True:\n"
         "        d.emit(a.ItemTruncated"),
    _one("no truncation", "ending.py", '        d.emit(a.ItemTruncated(item_id, snapshot, "server"))', "        pass"),
    _one("response.done twice", "ending.py", "    d.emit(a.ResponseDone(done))\n    if started and to_the_end:",
         "    d.emit(a.ResponseDone(done))\n    d.emit(a.ResponseDone(done))\n    if started and to_the_end:"),
    _one("an interruption is client_cancelled", "ending.py", 'retire(d, "cancelled", reason="turn_detected")',
         'retire(d, "cancelled", reason="client_cancelled")'),
    _one("a cut leaves its output open", "ending.py", "        d.emit(a.OutputCleared(plan.id))\n    d.set(resp=Idle()",
         "        pass\n    d.set(resp=Idle()"),
    _one("no drain cap", "flight.py", '        d.arm("drain_cap", d.at + cap)\n', ""),
    _one("cleared audio goes out", "flight.py", "if resp is None or resp.voice.cleared or isinstance(d.s.resp, Held):",
         "if resp is None or isinstance(d.s.resp, Held):"),
    _one("words leave a frame late", "flight.py", ".start_ms < ev.written_ms:", ".start_ms < ev.written_ms - 20:"),
    _one("out-of-band items are in the conversation", "flight.py", "    if not plan.params.out_of_band:", "    if True:"),
    _one("a response that is due while the user talks is forgotten", "response.py", "d.set(parked=Parked(params))", "pass"),
    _one("a parked response does not wait for the user", "response.py",
         "not waiting and isinstance(s.vad, Silent) and live", "not waiting and live"),
    _one("a response does not wait for words on their way", "response.py", "return not waiting and ", "return "),
    _one("a second parked response is taken", "machine.py", "elif live(d.s.resp) is not None or d.s.parked is not None:",
         "elif live(d.s.resp) is not None:"),
    _one("the larger truncation counts", "response.py", "heard = min(ev.audio_end_ms, item.audio_ms)",
         "heard = max(ev.audio_end_ms, item.audio_ms)"),
    Mutation("speech is announced before the reply is cut", "candidate.py", (
        ("    resp = live(d.s.resp)\n    if isinstance(d.s.resp, Held) and d.s.resp.failure is None",
         "    resp = live(d.s.resp)\n    _announce(d, vad)\n    if isinstance(d.s.resp, Held) and d.s.resp.failure is None"),
        ("        ending.barge_in(d)\n    _announce(d, vad)\n", "        ending.barge_in(d)\n"))),
    _one("backchannels take the floor", "candidate.py", "return enough and not backchannels.are",
         "return enough or not backchannels.are"),
    _one("one word of a partial takes the floor", "candidate.py", "SURE_WORDS = 2", "SURE_WORDS = 1"),
    _one("sounds never take the floor", "candidate.py", "            commit(d, \"length\")", "            pass"),
    _one("no boundary rule", "candidate.py", "if said and is_near_its_end(held", "if False and is_near_its_end(held"),
    _one("output is never released", "held.py", "        d.do(ReleaseOutput(resp.plan.epoch))\n", "        pass\n"),
    _one("the drain cap runs through a hold", "held.py", '    d.disarm("drain_cap")\n    told', "    told"),
    _one("a held failure is forgotten", "held.py", '        retire(d, "failed", error_code=held.failure)\n        return\n',
         "        pass\n"),
    _one("interruption off still cuts", "settings.py", 'td.interrupt_response and self.barge_in.mode != "off"', "True"),
    _one("a prediction is adopted whatever it was asked", "predicted.py",
         "if params != draft.plan.params or not _is_same(wanted, draft.ask):", "if params != draft.plan.params:"),
    _one("a prediction is adopted for other words", "predicted.py", "or _as_said(last.content) != _as_said(other.content)", ""),
    _one("what is being written is begun again at the stop", "predicted.py",
         "if isinstance(d.s.resp, Predicted) and _is_same(", "if isinstance(d.s.resp, Predicted) and False and _is_same("),
    _one("a prediction lives on under more voice", "predicted.py",
         "(s.vad.item_id, s.vad.voiced_ms) == (draft.item_id, draft.voiced_ms)", "s.vad.item_id == draft.item_id"),
    _one("words before more voice begin a reply", "turn.py", "if ev.voiced_ms != phase.last_voiced_ms:", "if False:"),
    _one("words that go on begin a reply", "turn.py", "if question.may_be_the_end(d, ev.transcript.text, ev.p):", "if True:"),
    _one("a prediction is announced at once", "predicted.py", "    d.do(question)\n    d.note",
         '    d.emit(a.ResponseCreated(view(plan, "in_progress")))\n    d.do(question)\n    d.note'),
    _one("a prediction outlives the silence", "response.py",
         "    if not stands(d.s):\n        drop_prediction(d)\n", ""),
    Mutation("the error comes after session.done", "life.py", (
        ("    if error is not None:\n        d.error(*error)\n", ""),
        ("    d.emit(a.SessionDone(reason))\n", "    d.emit(a.SessionDone(reason))\n    if error is not None:\n"
         "        d.error(*error)\n"))),
    _one("errors do not say what they answer", "draft.py", "ErrorEvent(code, message, param, event_id)",
         "ErrorEvent(code, message, param)"),
    _one("null does not switch off", "settings.py", "            flat[group] = None\n", "            pass\n"),
    _one("a refused update is half applied", "settings.py", "                except ValueError as problem:\n"
         '                    code = getattr(problem, "code", "session_update_invalid")\n                    raise ',
         "                except ValueError as problem:\n"
         '                    code = getattr(problem, "code", "session_update_invalid")\n                    continue\n'
         "                    raise "),
    _one("ga carries events of our own", "wire.py", '"output_audio_buffer.paused", "response_id": response_id} if extended',
         '"output_audio_buffer.paused", "response_id": response_id} if True'),
    _one("aliases doubled: beta sends an item under both names", "dialects.py",
         '_GA_ONLY = {"conversation.item.done", ', '_GA_ONLY = {'),
)  # fmt: skip


def _tree(folder: Path) -> dict[str, str]:
    """Copy what the check needs -> the environment in which the copy is imported."""
    for name in ("realtime", "conformance", "tests/realtime"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests/__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "tests/data").symlink_to(ROOT / "tests/data")
    (folder / ".ns/bargein").mkdir(parents=True)
    for name in ("realtime", "conformance"):
        (folder / ".ns/bargein" / name).symlink_to(folder / name)
    for name in ("pipeline", "engine", "models", "kernels", "http_api", "client"):
        (folder / ".ns/bargein" / name).symlink_to(ROOT / name)
    return os.environ | {"PYTHONPATH": str(folder / ".ns"), "FUZZ_SEEDS": "6", "PYTHONDONTWRITEBYTECODE": "1"}


# Three that fail are enough.
FIXTURES = """
import itertools, sys
from bargein.conformance import bounds, fixture
bad = (n for n, x in fixture.load().items() if fixture.run(n, x).problems)
found = list(itertools.islice(itertools.chain(bad, (f"bounds {n}" for n, x in bounds.run() if x)), 3))
print(*found, sep=chr(10)); sys.exit(bool(found))
"""


def _caught(folder: Path, env: dict[str, str]) -> str | None:
    """What fails in the copy; None: nothing does."""
    run = [sys.executable, "-c", FIXTURES]
    got = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    if got.returncode:
        names = got.stdout.split("\n")[:-1]
        if not names:
            return f"the runner: {got.stderr.splitlines()[-1][:120]}"
        return ", ".join(names)
    files = sorted(folder.glob("tests/realtime/test_*.py"), key=lambda x: (x.stem in SLOW, x.name))
    run = [sys.executable, "-m", "pytest", *map(str, files), "-x", "-q", "-p", "no:cacheprovider"]
    got = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    failed = [x for x in got.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split()[1] if failed else None


def mutate(names: list[str]) -> list[tuple[str, str | None]]:
    """Try the mutations (all, or those whose name holds one of `names`) -> each with what caught it.

    Raises ValueError where a mutation does not fit the source any more, or the source itself fails.
    """
    chosen = [m for m in MUTATIONS if not names or any(n in m.name for n in names)]
    with ThreadPoolExecutor(WORKERS) as pool:
        rows = list(chain.from_iterable(pool.map(_try, [chosen[n::WORKERS] for n in range(WORKERS)])))
    order = {m.name: n for n, m in enumerate(chosen)}
    return sorted(rows, key=lambda row: order[row[0]])


def _try(mutations: list[Mutation]) -> list[tuple[str, str | None]]:
    """These mutations one after the other, in one copied tree."""
    rows: list[tuple[str, str | None]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        env = _tree(folder)
        if (problem := _caught(folder, env)) is not None:
            raise ValueError(f"without any mutation: {problem}")
        for m in mutations:
            path = folder / "realtime" / m.file
            whole = path.read_text()
            path.write_text(mutated(m, whole))
            try:
                by = _caught(folder, env)
            except subprocess.TimeoutExpired:
                by = f"does not end within {PATIENCE_S} s"
            path.write_text(whole)
            rows.append((m.name, by))
            print(f"{'survives' if by is None else 'caught  '} {m.name}{'' if by is None else ': ' + by}", flush=True)
    return rows


def mutated(m: Mutation, text: str) -> str:
    """The source with a mutation in it. Raises ValueError where it does not fit the source any more."""
    for old, new in m.edits:
        if text.count(old) != 1:
            raise ValueError(f"{m.name}: {m.file} holds {text.count(old)} times {old!r}")
        text = text.replace(old, new)
    return text


def table(rows: list[tuple[str, str | None]]) -> str:
    """The rows as Markdown."""
    head = "# Mutations of the machine\n\nWritten by `python -m bargein.conformance.mutate --write`: each breaks `realtime/` "
    head += "in one way and has to be caught by the fixtures or by `tests/realtime`.\n\n| mutation | caught by |\n|---|---|\n"
    return head + "".join(f"| {name} | {by or '**survives**'} |\n" for name, by in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bargein.conformance.mutate")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only mutations whose name holds one of these")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the table")
    args = parser.parse_args()
    rows = mutate(args.names)
    if args.write is not None:
        args.write.write_text(table(rows))
    survived = sum(by is None for _, by in rows)
    print(f"{len(rows) - survived} caught, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
