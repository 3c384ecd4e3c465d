"""`bargein conformance`: fixtures, corpora, live servers, traces."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from . import bounds, corpus, coverage, fixture, fuzz, live, rules
from .canonical import canonical, diff, read_trace

Results = Iterator[tuple[str, list[str]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands, each with `act` set to what does it."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    run = actions.add_parser("run", help="the fixtures; or a live server, or a corpus of version 3")
    run.add_argument("--server", metavar="URL", help="drive this server over WebSocket instead")
    run.add_argument("--key", default="", help="its API key")
    run.add_argument("--corpus", type=Path, metavar="DIR", help="run version 3's folders under DIR instead")
    run.add_argument("names", nargs="*", metavar="NAME", help="only fixtures whose name holds one of these")
    run.set_defaults(act=_run)
    record = actions.add_parser("record", help="write what fixtures lead to into them; read it before you keep it")
    record.add_argument("files", nargs="+", type=Path, metavar="FIXTURE")
    record.set_defaults(act=_record)
    check = actions.add_parser("check", help="hold a trace against the wire invariants")
    check.add_argument("trace", type=Path, metavar="TRACE")
    check.add_argument("--unfinished", action="store_true", help="the session went on: responses may be open")
    check.set_defaults(act=_check)
    pair = actions.add_parser("diff", help="how two traces differ, in canonical form")
    pair.add_argument("a", type=Path, metavar="A")
    pair.add_argument("b", type=Path, metavar="B")
    pair.set_defaults(act=_diff)
    canon = actions.add_parser("canonical", help="a trace in canonical form: ids by first appearance, no times")
    canon.add_argument("trace", type=Path, metavar="TRACE")
    canon.set_defaults(act=_canonical)
    wild = actions.add_parser("fuzz", help="hostile clients against a server; a failure names the seed that repeats it")
    wild.add_argument("--server", metavar="URL", required=True)
    wild.add_argument("--key", default="", help="its API key")
    wild.add_argument("--scenarios", type=int, default=200, metavar="N", help="how many (default %(default)s)")
    wild.add_argument("--seed", type=int, default=1, metavar="N")
    wild.add_argument("--first", type=int, default=0, metavar="N", help="begin with this one")
    wild.add_argument("--webrtc", action="store_true", help="calls over WebRTC, some with a rival on the sideband")
    wild.set_defaults(act=_fuzz)
    cover = actions.add_parser("coverage", help="print what of the contract is covered by what")
    cover.add_argument("--write", action="store_true", help=f"write {coverage.FILE.name}")
    cover.set_defaults(act=_coverage)


def main(args: argparse.Namespace) -> int:
    """Do what was asked; 1 where something failed, 2 where it could not be tried."""
    try:
        status: int = args.act(args)
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        print(f"bargein: {where}{problem.strerror or problem}", file=sys.stderr)
        return 2
    except ValueError as problem:
        print(f"bargein: {problem}", file=sys.stderr)
        return 2
    return status


def _tell(results: Results) -> int:
    passed = failed = 0
    for name, problems in results:
        print(f"{'FAIL' if problems else 'ok  '} {name}", flush=True)
        for problem in problems:
            print(f"     {problem}")
        passed, failed = passed + (not problems), failed + bool(problems)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def _fixtures(names: list[str]) -> Results:
    for name, held in fixture.load().items():
        if not names or any(part in name for part in names):
            yield name, fixture.run(name, held).problems
    for path, problems in bounds.run():
        if not names or any(part in f"bounds {path}" for part in names):
            yield f"bounds {path}", problems


def _run(args: argparse.Namespace) -> int:
    if args.server is not None:
        return _tell(live.run(args.server, args.key))
    if args.corpus is not None:
        return _tell(corpus.run_all(args.corpus))
    return _tell(_fixtures(args.names))


def _fuzz(args: argparse.Namespace) -> int:
    return _tell(fuzz.run(args.server, args.scenarios, args.seed, args.key, args.first, webrtc=args.webrtc))


def _record(args: argparse.Namespace) -> int:
    failed = 0
    for path in args.files:
        problems = fixture.record(path)
        print(f"{'FAIL' if problems else 'wrote'} {path}", *problems, sep="\n     ")
        failed += bool(problems)
    return 1 if failed else 0


def _check(args: argparse.Namespace) -> int:
    trace = read_trace(args.trace)
    found = rules.check(trace, ended=not args.unfinished)
    for v in found:
        print(f"{v.rule} at {v.at}: {v.what}")
        if 0 <= v.at < len(trace):
            print(f"     {json.dumps(trace[v.at], ensure_ascii=False)[:400]}")
    print(f"{len(trace)} events, {len(found)} violations")
    return 1 if found else 0


def _server_side(path: Path) -> list[dict[str, object]]:
    return canonical(ev for ev in read_trace(path) if "sent" not in ev)


def _diff(args: argparse.Namespace) -> int:
    lines = diff(_server_side(args.a), _server_side(args.b))
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


def _canonical(args: argparse.Namespace) -> int:
    for n, ev in enumerate(_server_side(args.trace)):
        print(json.dumps({"n": n} | ev, ensure_ascii=False))
    return 0


def _coverage(args: argparse.Namespace) -> int:
    report = coverage.report()
    if args.write:
        coverage.FILE.write_text(report.text)
    else:
        print(report.text, end="")
    for what in report.missing:
        print(f"not covered: {what}", file=sys.stderr)
    return 1 if report.missing else 0
