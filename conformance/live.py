"""The black-box part: what a server has to do that can be asked for over a WebSocket, without a microphone.

Each scenario is one connection. What both sides sent is kept in order and held against the wire invariants at the end.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from . import rules
from .canonical import JsonObject
from .fixture import matches

WAIT_S = 15.0
CHAT_S = 60.0


class Unmet(Exception):
    """The server did not do what it has to; the message says what."""


@dataclass(slots=True)
class Line:
    """One connection. `log` holds (time in ms, event) of both sides; what was sent is marked."""

    ws: Connection
    log: list[tuple[float, JsonObject]] = field(default_factory=list)
    sent: int = 0

    def send(self, kind: str, **fields: Any) -> str:
        """Send an event; its id is returned."""
        self.sent += 1
        ev: JsonObject = {"type": kind, "event_id": f"client_{self.sent}"} | fields
        self.log.append((time.monotonic() * 1000, {"sent": True} | ev))
        self.ws.send(json.dumps(ev))
        return str(ev["event_id"])

    def raw(self, text: str) -> None:
        """Send what is no event."""
        self.log.append((time.monotonic() * 1000, {"sent": True}))
        self.ws.send(text)

    def read(self, timeout: float) -> JsonObject | None:
        try:
            text = self.ws.recv(timeout)
        except TimeoutError:
            return None
        ev = json.loads(text)
        self.log.append((time.monotonic() * 1000, ev))
        return dict(ev)

    def wait(self, kind: str, timeout: float = WAIT_S, **fields: Any) -> JsonObject:
        """The next event of that type with these values ("response__id" is response.id). Raises Unmet."""
        wanted = {k.replace("__", "."): v for k, v in fields.items()}
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            ev = self.read(left)
            if ev is not None and matches(ev, kind, wanted):
                return ev
        raise Unmet(f"{kind} {wanted or ''} did not come within {timeout:g} s")

    def refused(self, event_id: str | None, code: str, param: str | None = None) -> None:
        """Wait for the error that answers an event. Raises Unmet."""
        error = self.wait("error", error__event_id=event_id)["error"]
        if error["code"] != code or (param is not None and error["param"] != param):
            raise Unmet(f"refused with {error['code']} ({error['param']}), not {code} ({param})")


def _need(good: bool, what: str) -> None:
    if not good:
        raise Unmet(what)


def _message(text: str, **fields: Any) -> JsonObject:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]} | fields


def _manual(c: Line) -> None:
    """Push to talk."""
    c.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    c.wait("session.updated", session__audio__input__turn_detection=None)


def _tone(ms: int) -> str:
    pcm = struct.pack(f"<{24 * ms}h", *(int(6000 * math.sin(0.05 * n) * math.sin(0.0007 * n)) for n in range(24 * ms)))
    return base64.b64encode(pcm).decode()


# --- scenarios -----------------------------------------------------------------------------------------------------


def update_merges(c: Line) -> None:
    """What an update does not name stays; null switches off; an empty list clears."""
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    c.send("session.update", session={"type": "realtime", "instructions": "Be brief.", "tools": [tool]})
    _need(len(c.wait("session.updated")["session"]["tools"]) == 1, "the tool is not echoed")
    c.send("session.update", session={"type": "realtime", "tools": [], "audio": {"input": {"turn_detection": None}}})
    s = c.wait("session.updated")["session"]
    _need(s["instructions"] == "Be brief.", "instructions were lost by another update")
    _need(s["tools"] == [] and s["audio"]["input"]["turn_detection"] is None, "null and [] did not take effect")


def update_all_or_nothing(c: Line) -> None:
    """One bad field: an error that names it, and nothing of the update applies."""
    audio = {"output": {"speed": 99}}
    eid = c.send("session.update", session={"type": "realtime", "instructions": "Lost.", "audio": audio})
    _need(c.wait("error", error__event_id=eid)["error"]["param"] == "session.audio.output.speed", "the bad field is not named")
    c.send("session.update", session={"type": "realtime"})
    _need(c.wait("session.updated")["session"]["instructions"] != "Lost.", "a refused update was applied")


def unreadable(c: Line) -> None:
    """Bad JSON, unknown types, missing fields: errors, and the session goes on."""
    c.raw("{nonsense")
    c.refused(None, "invalid_event")
    c.refused(c.send("no.such.event"), "unknown_event_type")
    c.refused(c.send("conversation.item.retrieve"), "invalid_event", "item_id")
    c.refused(c.send("input_audio_buffer.append", audio="%%%"), "invalid_event", "audio")
    c.refused(c.send("input_audio_buffer.append", audio="AAAA"), "invalid_event", "audio")
    c.send("session.update", session={"type": "realtime"})
    c.wait("session.updated")


def items(c: Line) -> None:
    """Items keep the client's ids and places, answer to retrieve, and are gone when deleted."""
    c.send("conversation.item.create", item=_message("b", id="item_b"))
    _need(c.wait("conversation.item.added", item__id="item_b").get("previous_item_id") is None, "a first item has none before")
    c.send("conversation.item.create", item=_message("a", id="item_a"), previous_item_id="root")
    c.wait("conversation.item.added", item__id="item_a", previous_item_id=None)
    c.send("conversation.item.create", item=_message("c", id="item_c"), previous_item_id="item_b")
    c.wait("conversation.item.added", item__id="item_c", previous_item_id="item_b")
    c.send("conversation.item.retrieve", item_id="item_a")
    got = c.wait("conversation.item.retrieved", item__id="item_a")["item"]
    _need(got["content"][0]["text"] == "a", "the item is not the one that was created")
    c.send("conversation.item.delete", item_id="item_b")
    c.wait("conversation.item.deleted", item_id="item_b")
    c.refused(c.send("conversation.item.retrieve", item_id="item_b"), "item_not_found")
    c.refused(c.send("conversation.item.delete", item_id="item_b"), "item_not_found")
    c.refused(c.send("conversation.item.create", item=_message("d"), previous_item_id="nowhere"), "item_not_found")
    truncate = {"item_id": "nowhere", "content_index": 0, "audio_end_ms": 0}
    c.refused(c.send("conversation.item.truncate", **truncate), "item_not_found")


def nothing_to_cancel(c: Line) -> None:
    """response.cancel without a response."""
    c.refused(c.send("response.cancel"), "response_cancel_not_active")


def commit_empty(c: Line) -> None:
    """An empty commit is refused with its event id; the clear that follows is answered."""
    _manual(c)
    c.refused(c.send("input_audio_buffer.commit"), "input_audio_buffer_commit_empty")
    c.send("input_audio_buffer.clear")
    c.wait("input_audio_buffer.cleared")


def commit_manual(c: Line) -> None:
    """Push to talk: commit makes the item and its transcript comes (be it empty); nothing answers by itself."""
    _manual(c)
    for _ in range(5):
        c.send("input_audio_buffer.append", audio=_tone(200))
    c.send("input_audio_buffer.commit")
    item = c.wait("input_audio_buffer.committed")["item_id"]
    c.wait("conversation.item.added", item__id=item)
    kind = "conversation.item.input_audio_transcription.completed"
    c.wait(kind, CHAT_S, item_id=item)
    c.wait("conversation.item.done", item__id=item)
    c.send("conversation.item.retrieve", item_id=item)
    c.wait("conversation.item.retrieved", item__id=item)
    _need(not [ev for _, ev in c.log if ev.get("type") == "response.created"], "something answered by itself")


def cleared_audio_is_gone(c: Line) -> None:
    """What was appended before a clear is not committed."""
    _manual(c)
    c.send("input_audio_buffer.append", audio=_tone(400))
    c.send("input_audio_buffer.clear")
    c.wait("input_audio_buffer.cleared")
    c.refused(c.send("input_audio_buffer.commit"), "input_audio_buffer_commit_empty")


def text_response(c: Line) -> None:
    """A text response: its deltas join to what is done, and to what the conversation keeps."""
    c.send("conversation.item.create", item=_message("Say hello."))
    c.send("response.create", response={"output_modalities": ["text"], "max_output_tokens": 24})
    rid = c.wait("response.created")["response"]["id"]
    done = c.wait("response.done", CHAT_S, response__id=rid)["response"]
    _need(done["status"] in ("completed", "incomplete"), f"the response ended {done['status']}")
    mine = [ev for _, ev in c.log if ev.get("response_id") == rid]
    joined = "".join(ev["delta"] for ev in mine if ev["type"] == "response.output_text.delta")
    texts = [ev["text"] for ev in mine if ev["type"] == "response.output_text.done"]
    _need(texts == [joined], "the deltas do not join to the text")
    item = done["output"][0]
    _need(item["content"][0]["text"] == joined, "response.done holds another text")
    c.send("conversation.item.retrieve", item_id=item["id"])
    got = c.wait("conversation.item.retrieved", item__id=item["id"])["item"]
    _need(got["content"][0]["text"] == joined, "the conversation holds another text")


def one_response_at_a_time(c: Line) -> None:
    """A second response.create is refused while one runs; a cancelled one is done, once."""
    c.send("conversation.item.create", item=_message("Tell me a long story about the sea."))
    c.send("response.create", response={"output_modalities": ["text"], "max_output_tokens": 400})
    second = c.send("response.create", response={"output_modalities": ["text"]})
    c.refused(second, "conversation_already_has_active_response")
    c.send("response.cancel")
    done = c.wait("response.done", CHAT_S)["response"]
    _need(done["status"] == "cancelled", f"a cancelled response is {done['status']}")
    _need(done["status_details"]["reason"] == "client_cancelled", "and its reason is another")


def out_of_band(c: Line) -> None:
    """An out-of-band response keeps its metadata and leaves the conversation alone."""
    asked = {"conversation": "none", "output_modalities": ["text"], "metadata": {"topic": "x"}, "max_output_tokens": 16,
             "input": [_message("Say yes.")]}  # fmt: skip
    c.send("response.create", response=asked)
    rid = c.wait("response.created")["response"]["id"]
    done = c.wait("response.done", CHAT_S, response__id=rid)["response"]
    _need(done["metadata"] == {"topic": "x"} and done.get("conversation_id") is None, "metadata or conversation are wrong")
    _need(not [ev for _, ev in c.log if ev.get("type") == "conversation.item.added"], "it is in the conversation")
    c.refused(
        c.send("response.create", response={"conversation": "none", "output_modalities": ["audio"]}),
        "invalid_request_error", "output_modalities",
    )  # fmt: skip


SCENARIOS: tuple[Callable[[Line], None], ...] = (
    update_merges, update_all_or_nothing, unreadable, items, nothing_to_cancel, commit_empty, commit_manual,
    cleared_audio_is_gone, text_response, one_response_at_a_time, out_of_band,
)  # fmt: skip


def address(url: str) -> str:
    """A server's WebSocket address: http becomes ws, a bare server gets the realtime path."""
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path if parts.path.strip("/") else "/v1/realtime"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def play(scenario: Callable[[Line], None], url: str, key: str = "") -> list[str]:
    """Run one scenario -> what is wrong. Raises OSError where there is no server."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with connect(address(url), additional_headers=headers, max_size=2**24, compression=None) as ws:
            line = Line(ws)
            problems: list[str] = []
            try:
                first = line.read(WAIT_S)
                _need(first is not None and first["type"] == "session.created", "session.created does not come first")
                scenario(line)
            except Unmet as problem:
                problems.append(str(problem))
            except (KeyError, IndexError, TypeError) as problem:
                problems.append(f"an event lacks something: {problem!r}")
    except WebSocketException as problem:
        return [f"the connection broke: {problem}"]
    trace = [ev for _, ev in line.log]
    problems += [f"{v.rule} at {v.at}: {v.what}" for v in rules.check(trace, ended=False, complete=True)]
    paced = [(at, ev) for at, ev in line.log if "sent" not in ev]
    return problems + [f"{v.rule} at {v.at}: {v.what}" for v in rules.check_pace(paced)]


def run(url: str, key: str = "") -> Iterator[tuple[str, list[str]]]:
    """Every scenario's name and what is wrong."""
    for scenario in SCENARIOS:
        yield scenario.__name__, play(scenario, url, key)
