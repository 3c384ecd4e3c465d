"""What of the contract is proved by what: `COVERAGE.md`, generated.

Fixtures say themselves what they prove; what they send, provoke and receive is read from their plays and traces. Tests
that are not fixtures are named here, and found by the words they use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from bargein.realtime import alphabet as a
from bargein.realtime import events as e
from bargein.realtime.settings import FIELDS, EouKind, FusionRule, Limits
from bargein.realtime.state import RespPhase, VadPhase

from . import bounds
from .canonical import JsonObject
from .fixture import Fixture, load, play
from .rules import CLIENT_TYPES
from .walker import walk

FILE = Path(__file__).parent / "COVERAGE.md"
TESTS = Path(__file__).resolve().parent.parent / "tests"
SEEDS, STEPS = 40, 600

# SPEC section 15.1, and the fixtures of each.
LIST: dict[str, str] = {
    "clean turn": "turn_clean",
    "pause inside": "turn_pause_inside turn_late_verdict",
    "barge-in while streaming": "cancel_while_streaming",
    "barge-in while draining": "cancel_while_draining",
    "barge-in before audio": "cancel_before_audio cancel_written_not_played",
    "raw onset not confirmed": "hold_onset_not_confirmed",
    "hold resumed": "hold_backchannel hold_min_words hold_gated_words",
    "hold committed by words": "hold_words",
    "hold committed by length": "hold_length hold_cap",
    "hold at the boundary": "hold_boundary_answer hold_after_last_word",
    "cough before the first sample": "hold_cough_before_audio",
    "re-entry": "turn_pause_inside turn_kind_vad_stacked predicted_other_words",
    "speech during the last turn's STT": "turn_during_last_turns_words",
    "tool result while the user talks": "tools_result_while_talking",
    "interruption off": "interruption_off interrupt_response_false",
    '"Yes." answered': "hold_boundary_answer hold_after_last_word",
    "backchannel": "hold_backchannel",
    "silence": "silence_only sound_too_short",
    "hard cap while EOU hangs": "turn_hard_cap_eou_hangs",
    "hard cap with a low score": "turn_hard_cap_low_score",
    "four statuses": "turn_clean response_client_cancels response_token_limit response_drain_cap response_chat_fails",
    "update with one bad field": "error_update_one_bad_field",
    "predicted adopted": "predicted_adopted predicted_ahead",
    "predicted abandoned by words": "predicted_other_words",
    "predicted abandoned by settings": "predicted_other_settings",
    "parallel tools": "tools_parallel",
    "client truncate": "client_truncates client_truncates_running",
    "push-to-talk": "turn_push_to_talk",
    "slow client": "end_client_too_slow",
    "input gap": "turn_input_gap",
    "idle": "end_idle idle_timeout_speaks",
    "max duration": "end_max_duration",
    "engine lost": "response_engine_lost end_engine_stays_away",
}
# Section 10's table of error codes.
CODES = (
    "invalid_event unknown_event_type session_update_invalid item_not_found conversation_already_has_active_response "
    "response_cancel_not_active input_audio_buffer_commit_empty input_audio_buffer_full eou_kind_unsupported "
    "eou_fusion_rule_unsupported rate_limit_exceeded client_too_slow vad_failed stt_failed model_load_failed "
    "engine_unavailable internal_state_error"
).split()
# Limits whose names no test says.
RATES = {n: "pipeline/test_rates.py" for n in ("events_per_s", "events_burst", "bytes_per_s", "bytes_burst")}
# Sections that are no matter of the machine's, and the tests of each.
ELSEWHERE = {
    "12": "http_api/test_doors.py e2e/test_webrtc.py e2e/test_call.py",
    "13": "pipeline/test_replay.py pipeline/test_inspect.py conformance/test_canonical.py",
    "14": "pipeline/test_inspect.py browser/test_inspector_page.py",
    "15": "conformance/test_fixtures.py realtime/test_fuzz.py",
}
HTTP_ONLY = {"model_not_found": "http_api/test_models.py"}
INVARIANTS = [f"I{n}" for n in range(1, 12)]
RULES = [f"W{n}" for n in range(1, 18) if n != 5]
LIVE = {"W12": "the live scenarios (`check_pace`)"}


@dataclass(slots=True)
class Report:
    text: str = ""
    missing: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Seen:
    """What the fixtures hold, each with the names of those that do."""

    tags: dict[str, list[str]] = field(default_factory=dict)
    received: dict[str, list[str]] = field(default_factory=dict)
    sent: dict[str, list[str]] = field(default_factory=dict)
    codes: dict[str, list[str]] = field(default_factory=dict)
    statuses: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)  # keys and values of settings
    pairs: dict[tuple[str, str], int] = field(default_factory=dict)


def _note(where: dict[str, list[str]], key: str, name: str) -> None:
    names = where.setdefault(key, [])
    if name not in names:
        names.append(name)


def _leaves(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield str(k)
            yield from _leaves(v)
    elif isinstance(value, str):
        yield value


def _look(all_: Mapping[str, Fixture]) -> _Seen:
    seen = _Seen()
    for name, fixture in all_.items():
        player, got = play(name, fixture)
        for tag in fixture["spec"]:
            _note(seen.tags, tag, name)
        for ev in got.trace:
            _event(seen, name, ev)
        settings = [fixture.get("settings", {}), fixture.get("limits", {})]
        for ev in player.wire:
            if "sent" in ev:
                _note(seen.sent, str(ev.get("type")), name)
                settings.append(ev.get("session") or {})
        for one in settings:
            for leaf in _leaves(one):
                _note(seen.words, leaf, name)
        for pair in player.pairs:
            seen.pairs[pair] = seen.pairs.get(pair, 0) + 1
    return seen


def _event(seen: _Seen, name: str, ev: JsonObject) -> None:
    _note(seen.received, ev["type"], name)
    if ev["type"] == "error":
        _note(seen.codes, ev["error"]["code"], name)
    if ev["type"] == "response.done":
        r = ev["response"]
        details = r.get("status_details") or {}
        _note(seen.statuses, " / ".join(filter(None, (r["status"], details.get("reason") or
                                                     details.get("error", {}).get("code")))), name)  # fmt: skip


def _tests() -> dict[str, str]:
    """Each test file's text by its path under `tests`; empty in an installed package."""
    return {str(p.relative_to(TESTS)): p.read_text() for p in sorted(TESTS.rglob("test_*.py"))} if TESTS.is_dir() else {}


def _row(report: Report, what: str, by: Iterable[str], *, wanted: bool = True) -> str:
    names = list(by)
    if wanted and not names:
        report.missing.append(what)
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"| {what} | {shown or '**none**'} |\n"


def _table(title: str, rows: Iterable[str]) -> str:
    return f"\n## {title}\n\n| what | proved by |\n|---|---|\n{''.join(rows)}"


def _mentions(tests: Mapping[str, str], word: str) -> list[str]:
    return [f"tests/{path}" for path, text in tests.items() if re.search(rf"\b{re.escape(word)}\b", text)]


def report() -> Report:
    """Play everything and say what is covered. Takes some seconds."""
    all_, tests, out = load(), _tests(), Report()
    seen = _look(all_)
    parts = [
        "# What is proved by what\n\nGenerated by `bargein conformance coverage --write`. A row names fixtures "
        f"(`conformance/fixtures`, {len(all_)} of them) and tests.\n"
    ]
    rows = []
    for what, names in LIST.items():
        there = [n for n in names.split() if n in all_]
        rows.append(_row(out, what, there if len(there) == len(names.split()) else []))
    parts.append(_table("The list of section 15", rows))
    parts.append(_table("Sections", [_section(out, seen, tests, str(n)) for n in range(1, 17)]))
    rows = [_row(out, i, seen.tags.get(i, []) + (["`invariants.py`, every step"] if i != "I9" else [])) for i in INVARIANTS]
    rows += [_row(out, w, seen.tags.get(w, []) + ([LIVE[w]] if w in LIVE else [])) for w in RULES]
    parts.append(_table("Invariants", rows))
    rows = [_row(out, code, seen.codes.get(code, [])) for code in CODES]
    rows += [_row(out, code, [f"tests/{path}"] if path in tests else []) for code, path in HTTP_ONLY.items()]
    parts.append(_table("Error codes", rows))
    parts.append(_table("Statuses of a response", [_row(out, s, n) for s, n in sorted(seen.statuses.items())]))
    ends = [_row(out, r, [n for n, x in all_.items() if any(
        ev.get("reason") == r for ev in x.get("trace", []) if ev["type"] == "session.done")]) for r in get_args(a.EndReason)
    ]  # fmt: skip
    parts.append(_table("Reasons of an end", ends))
    parts.append(_table("Client events", [_row(out, k, seen.sent.get(k, []) + (
        [] if k in seen.sent else _mentions(tests, k))) for k in sorted(CLIENT_TYPES)]))  # fmt: skip
    parts.append(_table("Server events", [_row(out, k, v) for k, v in sorted(seen.received.items())]))
    parts.append(_kinds(out, seen, tests))
    parts.append(_settings(out, seen, tests))
    parts.append(_pairs(seen))
    out.text = "".join(parts)
    return out


def _section(out: Report, seen: _Seen, tests: Mapping[str, str], number: str) -> str:
    by = [n for tag, names in seen.tags.items() if re.fullmatch(rf"{number}(\.\d+)?", tag) for n in names]
    by += [f"tests/{path}" for path in ELSEWHERE.get(number, "").split() if path in tests]
    return _row(out, f"section {number}", dict.fromkeys(by))


def _kinds(out: Report, seen: _Seen, tests: Mapping[str, str]) -> str:
    def by(kind: str) -> list[str]:
        named = [f"tests/{path}" for path, text in tests.items() if re.search(rf'"{kind}"', text)]
        return [*seen.words.get(kind, []), *named]

    rows = [_row(out, f"eou.kind {k}", by(k)) for k in get_args(EouKind)]
    rows += [_row(out, f"eou.fusion_rule {k}", by(k)) for k in get_args(FusionRule)]
    return _table("Classifiers and rules", rows)


def _settings(out: Report, seen: _Seen, tests: Mapping[str, str]) -> str:
    held = json.loads(bounds.FILE.read_text())
    text = "\n## Settings\n\n| setting | bounds | used by |\n|---|---|---|\n"
    paths: list[tuple[str, bool | None]] = [(x.path, x.path in held) for x in FIELDS]
    paths += [(f"limits: {name}", None) for name in Limits.__struct_fields__]
    for path, bound in paths:
        leaf = path.rsplit(".", 1)[-1].removeprefix("limits: ")
        by = [*seen.words.get(leaf, []), *_mentions(tests, leaf), *([f"tests/{RATES[leaf]}"] if leaf in RATES else [])]
        if bound is False or (bound is None and not by):
            out.missing.append(path)
        shown = ", ".join(by[:4]) + (f" and {len(by) - 4} more" if len(by) > 4 else "")
        text += f"| {path} | {'`bounds.json`' if bound else 'server' if bound is None else '**none**'} | {shown or '-'} |\n"
    return text


def _pairs(seen: _Seen) -> str:
    """Which input was met in which state, by the fixtures and by the walker."""
    met = set(seen.pairs)
    for seed in range(SEEDS):
        met |= walk(seed, STEPS).p.pairs
    inputs = sorted(x.__name__ for x in get_args(e.Input))
    states = sorted({state for state, _ in met})
    possible = [f"{v.__name__}.{r.__name__}" for v in get_args(VadPhase) for r in get_args(RespPhase)]
    text = (
        "\n## Inputs in states\n\nA state is its user's side and its reply's side. "
        f"{len(met)} pairs of state and input were met, by the fixtures and by {SEEDS} walks of {STEPS} steps "
        f"({len(inputs)} kinds of input, {len(states)} of {len(possible) + 2} states; the others contradict an invariant or "
        "were never reached: "
    )
    text += ", ".join(sorted(set(possible) - set(states))) + ").\n\n| state | inputs never met in it |\n|---|---|\n"
    for state in states:
        never = [x for x in inputs if (state, x) not in met]
        if state == "Pending":
            never = ["(nothing but `Opened` may come)"]
        text += f"| {state} | {', '.join(x for x in never if x != 'Opened') or '-'} |\n"
    return text
