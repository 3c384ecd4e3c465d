"""What a hostile, broken or hasty client sends, drawn at random: events well formed and not, in any order, sound of every kind.

Everything comes from one `random.Random`, so that a seed gives the same client again.
"""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

RATE = 24000
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e308, 2**63, "", "x", "\u0000", "\U0001f600" * 50, [], {}, [[]], {"type": None}, ["a"] * 300,
)  # fmt: skip
BROKEN = (
    "", " ", "{", "}", "null", "[]", "3", '"x"', "{nonsense", '{"type":', '{"type": "response.create"', "\ufeff{}", "NaN",
    '{"type": NaN}', '{"type": ["response.create"]}', '{"type": {"a": 1}}', '{"type": "x", "type": "y"}', "[" * 20000,
    '{"a":' * 5000, '{"type": "session.update", "session": ' + "[" * 3000,
)  # fmt: skip
ADDRESSES = ("", "?events=extended", "?events=extended", "?events=beta", "?intent=transcription",
             "?model=gpt-realtime", "?events=extended&frames=binary")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that the client does. `events`: JSON values to send, mostly objects; `raw`: what is no event; then it
    waits `wait_s`."""

    what: str
    events: tuple[Any, ...] = ()
    raw: str | bytes | None = None
    wait_s: float = 0.0


@cache
def speech(kind: int) -> bytes:
    """About a second that a voice detector takes for a voice: pulses through moving resonances, in syllables. 24 kHz, s16."""
    rng = random.Random(kind)
    vowels = [rng.choice(((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))) for _ in range(5)]
    pitch, phase, memory, out = rng.uniform(95, 210), 0.0, [[0.0, 0.0] for _ in range(3)], []
    length = RATE
    for n in range(length):
        phase += pitch * (1.1 - 0.3 * n / length) / RATE
        x = 1.0 if phase >= 1 else 0.0
        phase -= x
        x += rng.uniform(-0.02, 0.02)
        for formant, (y1, y2) in enumerate(memory):
            r, w = math.exp(-math.pi * 90 / RATE), 2 * math.pi * vowels[5 * n // length][formant] / RATE
            x, memory[formant] = (y := x + 2 * r * math.cos(w) * y1 - r * r * y2), [y, y1]
        out.append(x * (0.15 + abs(math.sin(5 * math.pi * n / length))))
    peak = max(abs(x) for x in out)
    return struct.pack(f"<{length}h", *(int(16000 * x / peak) for x in out))


def sound(rng: random.Random) -> bytes:
    """A tenth of a second to a second of something: silence, noise, a tone, clicks, a voice."""
    n = rng.choice((2400, 4800, 12000, 24000))
    kind = rng.randrange(6)
    if kind < 2:
        return speech(rng.randrange(4))[: 2 * n]
    if kind == 2:
        return bytes(2 * n)
    if kind == 3:
        return rng.randbytes(2 * n)
    if kind == 4:
        hz = rng.uniform(50, 4000)
        return struct.pack(f"<{n}h", *(int(9000 * math.sin(2 * math.pi * hz * k / RATE)) for k in range(n)))
    return struct.pack(f"<{n}h", *(30000 if k % 3000 < 30 else 0 for k in range(n)))


def _text(rng: random.Random) -> str:
    return rng.choice(("Say hello.", "Tell me a story.", "", "x" * 5000, "\u0000\u202e", "¿Qué?", "なるほど", "<|im_end|>"))


def _item(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = rng.choice((
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _text(rng)}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": _text(rng)}]},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": _text(rng)}]},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": _text(rng)},
    ))  # fmt: skip
    return made | ({"id": rng.choice(("item_a", "item_b", "item_c"))} if rng.random() < 0.6 else {})


def _response(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {"max_output_tokens": rng.choice((1, 8, 24)), "output_modalities": [rng.choice(("audio", "text"))]}
    if rng.random() < 0.2:
        made |= {"conversation": "none", "output_modalities": ["text"], "metadata": {"a": "b"}}
    if rng.random() < 0.2:
        made["input"] = [rng.choice((_item(rng), {"type": "item_reference", "id": "item_a"}))]
    return made


def _session(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = rng.choice((
        {"instructions": _text(rng)},
        {"audio": {"input": {"turn_detection": None}}},
        {"audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": rng.choice((50, 200, 5000))}}}},
        {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}}},
        {"audio": {"output": {"speed": rng.choice((0.25, 1.0, 1.5, 99))}}},
        {"audio": {"input": {"format": {"type": rng.choice(("audio/pcmu", "audio/pcma"))}}}},
        {"output_modalities": ["text"]},
        {"tools": [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]},
        {"barge_in": {"mode": rng.choice(("hold", "cancel", "off"))}},
        {"max_output_tokens": rng.choice((1, 16, "inf", -4))},
        {"profile": rng.choice(("fast", "patient", "hasty"))},
        {"no_such_field": 1},
        {"model": "no-such-model"},
    ))  # fmt: skip
    return {"type": "realtime"} | made if rng.random() < 0.9 else made


def event(rng: random.Random) -> dict[str, Any]:
    """A well-formed event, or nearly."""
    item = rng.choice(("item_a", "item_b", "item_c", "item_nowhere"))
    made: dict[str, Any] = rng.choice((
        {"type": "session.update", "session": _session(rng)},
        {"type": "session.update", "session": _session(rng)},
        {"type": "conversation.item.create", "item": _item(rng), "previous_item_id": rng.choice((None, None, "root", item))},
        {"type": "conversation.item.create", "item": _item(rng)},
        {"type": "conversation.item.retrieve", "item_id": item},
        {"type": "conversation.item.delete", "item_id": item},
        {"type": "conversation.item.truncate", "item_id": item, "content_index": 0, "audio_end_ms": rng.randrange(5000)},
        {"type": "response.create", "response": _response(rng)},
        {"type": "response.create"},
        {"type": "response.cancel"},
        {"type": "output_audio_buffer.clear"},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear"},
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(sound(rng)).decode()},
    ))  # fmt: skip
    return made


def damaged(rng: random.Random, value: Any) -> Any:
    """The same with one thing wrong somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        rest = dict(value)
        match rng.randrange(5):
            case 0:
                del rest[key]
            case 1:
                rest[rng.choice(("", "no_such", "type", "x" * 300))] = rng.choice(JUNK)
            case _:
                rest[key] = damaged(rng, value[key])
        return rest
    if isinstance(value, list) and value and rng.random() < 0.7:
        return [damaged(rng, value[0]), *value[1:]]
    return rng.choice(JUNK)


def move(rng: random.Random) -> Move:
    """What the client does next."""
    match rng.randrange(14):
        case 0 | 1 | 2 | 3:
            return Move("event", (event(rng),), wait_s=rng.choice((0, 0, 0.01, 0.2)))
        case 4 | 5:
            return Move("damaged", (damaged(rng, event(rng)),))
        case 6:
            return Move("broken", raw=rng.choice(BROKEN))
        case 7:
            return Move("bytes", raw=rng.randbytes(rng.choice((0, 1, 2, 959, 960, 5000))))
        case 8:
            odd = base64.b64encode(rng.randbytes(rng.choice((1, 3, 959, 961)))).decode()
            return Move("odd sound", tuple({"type": "input_audio_buffer.append", "audio": x} for x in (odd, "%%%", odd[:-1])))
        case 9:
            text = "y" * rng.choice((70_000, 1_000_000))
            field = rng.choice(("instructions", "event_id", "type", "audio"))
            if field == "instructions":
                return Move("huge", ({"type": "session.update", "session": {"type": "realtime", field: text}},))
            return Move("huge", ({"type": "input_audio_buffer.append", "audio": "", field: text},))
        case 10:
            one = rng.choice(({"type": "response.cancel"}, {"type": "input_audio_buffer.commit"}, event(rng), {"type": "?"}))
            return Move("flood", (one,) * rng.choice((30, 300)))
        case 11:
            talk = [speech(rng.randrange(4)) for _ in range(rng.randrange(1, 4))] + [bytes(RATE)]
            pcm = b"".join(talk)
            step = rng.choice((960, 4800, 961 * 2))
            parts = (pcm[n : n + step] for n in range(0, len(pcm), step))
            appends = ({"type": "input_audio_buffer.append", "audio": base64.b64encode(p).decode()} for p in parts)
            return Move("talk", tuple(appends), wait_s=rng.choice((0, 0.3)))
        case 12:
            asked = {"type": "response.create", "response": _response(rng)}
            return Move("ask", ({"type": "conversation.item.create", "item": _item(rng)}, asked), wait_s=rng.choice((0, 0.5)))
        case _:
            return Move("pause", wait_s=rng.uniform(0, 0.3))


def as_text(value: Any) -> str:
    """JSON text of anything that `damaged` makes."""
    return json.dumps(value)
