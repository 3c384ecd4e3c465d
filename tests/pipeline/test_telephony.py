"""The providers' protocols as their documentation tells them: whole streams, in and out, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from bargein.pipeline.telephony import FRAMINGS
from bargein.pipeline.telephony.framing import Ended, Key, PhoneError, PhoneEvent, Played, Sound, Started
from bargein.pipeline.telephony.transport import PhoneTransport

A, B, C = (base64.b64encode(bytes([n]) * 160).decode() for n in (1, 2, 3))


def sound(n: int) -> Sound:
    return Sound(bytes([n]) * 160)


TWILIO = [
    ({"event": "connected", "protocol": "Call", "version": "1.0.0"}, []),
    ({"event": "start", "sequenceNumber": "1", "streamSid": "MZ1", "start": {
        "accountSid": "AC1", "streamSid": "MZ1", "callSid": "CA1", "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {"agent": "desk", "house": "Elm Court"}}},
     [Started("MZ1", "CA1", {"agent": "desk", "house": "Elm Court"})]),
    ({"event": "media", "sequenceNumber": "2", "streamSid": "MZ1",
      "media": {"track": "inbound", "chunk": "1", "timestamp": "5", "payload": A}}, [sound(1)]),
    ({"event": "media", "sequenceNumber": "3", "streamSid": "MZ1",
      "media": {"track": "outbound", "chunk": "2", "timestamp": "25", "payload": B}}, []),
    ({"event": "dtmf", "streamSid": "MZ1", "sequenceNumber": "4",
      "dtmf": {"track": "inbound_track", "digit": "7"}}, [Key("7")]),
    ({"event": "mark", "sequenceNumber": "5", "streamSid": "MZ1", "mark": {"name": "0.10"}}, [Played("0.10")]),
    ({"event": "stop", "sequenceNumber": "6", "streamSid": "MZ1", "stop": {"accountSid": "AC1", "callSid": "CA1"}}, [Ended()]),
]  # fmt: skip
TELNYX = [
    ({"event": "connected", "version": "1.0.0"}, []),
    ({"event": "start", "sequence_number": "1", "stream_id": "32DE", "start": {
        "user_id": "3E6F", "call_control_id": "v2:T02", "call_session_id": "ff55", "from": "+13122010094",
        "to": "+13122123456", "tags": ["T"], "client_state": "aGk=", "custom_parameters": {"house": "Elm Court"},
        "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1}}},
     [Started("32DE", "v2:T02", {"caller": "+13122010094", "called": "+13122123456", "house": "Elm Court"})]),
    ({"event": "media", "sequence_number": "4", "stream_id": "32DE",
      "media": {"track": "inbound", "chunk": "2", "timestamp": "5", "payload": A}}, [sound(1)]),
    ({"event": "media", "media": {"track": "inbound", "chunk": "4", "payload": C}}, []),
    ({"event": "media", "media": {"track": "inbound", "chunk": "3", "payload": B}}, [sound(2), sound(3)]),
    ({"event": "media", "media": {"track": "inbound", "chunk": "3", "payload": B}}, []),
    ({"event": "media", "media": {"track": "outbound", "chunk": "5", "payload": B}}, []),
    ({"event": "dtmf", "occurred_at": "2026-01-01T00:00:00Z", "sequence_number": "5", "stream_id": "32DE",
      "dtmf": {"digit": "#"}}, [Key("#")]),
    ({"event": "mark", "sequence_number": "6", "stream_id": "32DE", "mark": {"name": "0.10"}}, [Played("0.10")]),
    ({"event": "stop", "sequence_number": "7", "stream_id": "32DE", "stop": {"user_id": "3E6F"}}, [Ended()]),
]  # fmt: skip
PLIVO = [
    ({"event": "start", "sequenceNumber": 1, "start": {
        "callId": "1234", "streamId": "8765", "accountId": "MA", "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000}}, "extra_headers": "house=Elm Court;agent=desk"},
     [Started("8765", "1234", {"house": "Elm Court", "agent": "desk"})]),
    ({"event": "media", "sequenceNumber": 2, "streamId": "8765",
      "media": {"track": "inbound", "timestamp": "1", "chunk": 1, "payload": A}, "extra_headers": ""}, [sound(1)]),
    ({"event": "dtmf", "streamId": "8765", "sequenceNumber": 3,
      "dtmf": {"track": "inbound", "digit": "2", "timestamp": "2"}}, [Key("2")]),
    ({"event": "playedStream", "sequenceNumber": 4, "streamId": "8765", "name": "0.10"}, [Played("0.10")]),
    ({"event": "clearedAudio", "sequenceNumber": 5, "streamId": "8765"}, []),
]  # fmt: skip
OUT = {
    "twilio": [
        {"event": "media", "streamSid": "MZ1", "media": {"payload": A}},
        {"event": "mark", "streamSid": "MZ1", "mark": {"name": "m"}},
        {"event": "clear", "streamSid": "MZ1"},
    ],
    "telnyx": [
        {"event": "media", "media": {"payload": A}}, {"event": "mark", "mark": {"name": "m"}}, {"event": "clear"},
    ],
    "plivo": [
        {"event": "playAudio", "media": {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": A}},
        {"event": "checkpoint", "streamId": "8765", "name": "m"},
        {"event": "clearAudio", "streamId": "8765"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "stream"), [("twilio", TWILIO), ("telnyx", TELNYX), ("plivo", PLIVO)])
def test_a_stream_as_documented(name: str, stream: list[tuple[dict[str, Any], list[PhoneEvent]]]) -> None:
    framing = FRAMINGS[name]()
    for message, events in stream:
        assert framing.read(json.dumps(message)) == events, message
    assert [framing.sound(bytes([1]) * 160), framing.mark("m"), framing.clear()] == OUT[name]


def test_a_lost_frame_is_not_waited_for_long() -> None:
    framing = FRAMINGS["telnyx"]()
    got: list[PhoneEvent] = []
    for chunk in (1, 3, 4, 5, 6, 7):
        media = {"track": "inbound", "chunk": str(chunk), "payload": A}
        got += framing.read(json.dumps({"event": "media", "media": media}))
    assert len(got) == 6


def _started(name: str, encoding: str, rate: int) -> str:
    start = {"twilio": TWILIO[1], "telnyx": TELNYX[1], "plivo": PLIVO[0]}[name][0]
    message = json.loads(json.dumps(start))
    form = message["start"].get("mediaFormat") or message["start"]["media_format"]
    form["encoding"] = encoding
    form["sample_rate" if name == "telnyx" else "sampleRate"] = rate
    return json.dumps(message)


@pytest.mark.parametrize(
    ("name", "encoding", "rate"),
    [("telnyx", "L16", 16000), ("telnyx", "OPUS", 16000), ("telnyx", "PCMA", 8000), ("plivo", "audio/x-l16", 8000),
     ("plivo", "audio/x-mulaw", 16000), ("twilio", "audio/x-wav", 8000)],
)  # fmt: skip
def test_another_codec_is_refused_by_name(name: str, encoding: str, rate: int) -> None:
    with pytest.raises(PhoneError, match=f"the codec {encoding} at {rate} Hz is not supported"):
        FRAMINGS[name]().read(_started(name, encoding, rate))


@pytest.mark.parametrize("name", FRAMINGS)
@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "{}", '{"event": 5}', '{"event": "media"}', '{"event": "media", "media": {"payload": "é"}}',
     '{"event": "media", "media": {"payload": 5}}', '{"event": "dtmf", "dtmf": {}}', '{"event": "start"}',
     '{"event": "start", "start": {"mediaFormat": 5, "media_format": []}}', "[" * 100_000],
)  # fmt: skip
def test_what_cannot_be_read_is_told_and_nothing_else(name: str, text: str) -> None:
    with pytest.raises(PhoneError):
        FRAMINGS[name]().read(text)


class Line:
    """A WebSocket that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def send_str(self, text: str) -> None:
        self.sent.append(json.loads(text))


def test_marks_tell_how_far_behind_the_line_is_and_a_cut_clears_it() -> None:
    async def run() -> tuple[list[str], float, float]:
        line, framing = Line(), FRAMINGS["twilio"]()
        framing.read(json.dumps(TWILIO[1][0]))
        phone = PhoneTransport(line, framing)  # type: ignore[arg-type]
        writer = asyncio.create_task(phone.write())
        for _ in range(20):
            phone.send_audio(bytes(160))
        due = asyncio.get_running_loop().time() + 0.2  # of the first mark, by our clock
        await asyncio.sleep(due + 0.15 - asyncio.get_running_loop().time())
        phone.played("0.10")
        lag = phone.lag_ms()
        phone.send('{"event_id":"evt_1","type":"output_audio_buffer.cleared","response_id":"r"}')
        phone.send('{"event_id":"evt_2","type":"response.done"}')
        phone.played("0.20")  # comes back with the clear, played or not
        await asyncio.sleep(0.01)
        writer.cancel()
        return [m["event"] for m in line.sent], lag, phone.lag_ms()

    kinds, lag, after = asyncio.run(run())
    assert kinds == (["media"] * 10 + ["mark"]) * 2 + ["clear"]
    assert 130 < lag < 300 and after == lag
