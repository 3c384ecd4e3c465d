"""The wire: client events in, server events out. Pure functions and one counter for event ids.

In: JSON to inputs of the machine; what cannot be read becomes a fault that names the field. Out: the internal alphabet
to a dialect's events. `ga` carries only what OpenAI's clients know; `extended` adds our own; `beta` is in `dialects`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from . import alphabet as a
from . import events as e
from .conversation import FunctionCall, FunctionOutput, Item, Message, Part
from .dialects import Dialect, beta
from .ids import ItemId
from .settings import FORMATS, SettingsError, echo, ga_format, parse, tool_choice, tools, voice

JsonObject = dict[str, Any]

MAX_EVENT_BYTES = 16 * 2**20
MAX_TEXT = 200_000


@dataclass(frozen=True, slots=True)
class Append:
    """`input_audio_buffer.append`: raw bytes in the session's input format."""

    audio: bytes
    event_id: str | None


class Fault(Exception):
    """A client event that cannot be taken; becomes an `error` event."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_event") -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


# --- in ------------------------------------------------------------------------------------------------------------


def read(raw: str | bytes, at: float, input_format: str) -> e.Input | Append:
    """One client event. Never raises: what cannot be read comes back as a ClientFault or SettingsRefused."""
    event_id: str | None = None
    try:
        try:
            ev = json.loads(raw)
        except (ValueError, RecursionError):
            raise Fault("the event is not valid JSON") from None
        if not isinstance(ev, dict):
            raise Fault("an event must be a JSON object")
        event_id = _event_id(ev)
        kind = ev.get("type")
        if not isinstance(kind, str):
            raise Fault("type must be a string", "type")
        reader = _READERS.get(kind)
        if reader is None:
            raise Fault(f"unknown event type {kind[:100]!r}", "type", "unknown_event_type")
        return reader(ev, at, event_id, input_format)
    except SettingsError as problem:
        return e.SettingsRefused(at, problem.param, problem.message, problem.code, event_id)
    except Fault as problem:
        return e.ClientFault(at, problem.code, problem.message, problem.param, event_id)


def _event_id(ev: JsonObject) -> str | None:
    value = ev.get("event_id")
    if value is not None and (not isinstance(value, str) or len(value) > 512):
        raise Fault("event_id must be a string of at most 512 characters", "event_id")
    return value


def _string(obj: JsonObject, key: str, path: str = "", *, default: str | None = None, limit: int = MAX_TEXT) -> str:
    value = obj.get(key, default)
    if not isinstance(value, str) or len(value) > limit:
        raise Fault(f"{path}{key} must be a string of at most {limit} characters", path + key)
    return value


def _whole(obj: JsonObject, key: str) -> int:
    value = obj.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value > 2**40:
        raise Fault(f"{key} must be a whole number, at least 0", key)
    return value


def _append(ev: JsonObject, at: float, event_id: str | None, input_format: str) -> e.Input | Append:
    text = _string(ev, "audio", limit=MAX_EVENT_BYTES)
    try:
        audio = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Fault("audio is not valid base64", "audio") from None
    check_pcm(audio, input_format)
    return Append(audio, event_id)


def check_pcm(audio: bytes, input_format: str) -> None:
    """16-bit formats come in whole samples. Raises Fault."""
    if input_format.startswith("pcm16") and len(audio) % 2:
        raise Fault("audio holds an odd number of bytes; samples are 16 bits", "audio")


def _update(ev: JsonObject, at: float, event_id: str | None, _: str) -> e.Input:
    session = ev.get("session")
    if not isinstance(session, dict):
        raise Fault("session must be an object", "session")
    return e.UpdateSession(at, parse(session), event_id)


def _update_transcription(ev: JsonObject, at: float, event_id: str | None, input_format: str) -> e.Input | Append:
    """Beta's own event for a transcription session."""
    session = ev.get("session")
    typed = session | {"type": "transcription"} if isinstance(session, dict) else session
    return _update(ev | {"session": typed}, at, event_id, input_format)


def _part(part: Any, path: str, role: str) -> Part:
    if not isinstance(part, dict):
        raise Fault(f"{path} must be an object", path)
    match part.get("type"), role:
        case "input_text", "user" | "system":
            return Part("input_text", _string(part, "text", path + "."))
        case "input_audio", "user":
            if part.get("audio") and not part.get("transcript"):
                raise Fault("audio inside an item is not supported; append it to the input buffer", path + ".audio")
            return Part("input_audio", _string(part, "transcript", path + "."))
        case "output_text" | "text", "assistant":
            return Part("output_text", _string(part, "text", path + "."))
        case "output_audio" | "audio", "assistant":
            return Part("output_audio", _string(part, "transcript", path + ".", default=""))
        case kind, _:
            raise Fault(f"content of type {kind!r} is not supported in a {role} message", path + ".type")


def _item(obj: Any, path: str = "item") -> Item:
    if not isinstance(obj, dict):
        raise Fault(f"{path} must be an object", path)
    item_id = ItemId(_string(obj, "id", path + ".", default="", limit=512))
    dot = path + "."
    match obj.get("type"):
        case "message":
            role = obj.get("role")
            if role not in ("user", "assistant", "system"):
                raise Fault(f"{path}.role must be user, assistant or system", path + ".role")
            content = obj.get("content")
            if not isinstance(content, list) or not 1 <= len(content) <= 64:
                raise Fault(f"{path}.content must be a list of 1 to 64 parts", path + ".content")
            parts = tuple(_part(p, f"{path}.content[{n}]", role) for n, p in enumerate(content))
            return Message(item_id, role, parts)
        case "function_call":
            call_id = _string(obj, "call_id", dot, limit=512)
            name = _string(obj, "name", dot, limit=512)
            return FunctionCall(item_id, call_id, name, _string(obj, "arguments", dot))
        case "function_call_output":
            return FunctionOutput(item_id, _string(obj, "call_id", dot, limit=512), _string(obj, "output", dot))
        case kind:
            raise Fault(f"items of type {kind!r} are not supported", path + ".type")


def _input(obj: Any, path: str) -> Item | e.ItemReference:
    """An item of a response's own input, or the name of one of the conversation's."""
    if isinstance(obj, dict) and obj.get("type") == "item_reference":
        return e.ItemReference(_string(obj, "id", path + ".", limit=512))
    return _item(obj, path)


def _create(ev: JsonObject, at: float, event_id: str | None, _: str) -> e.Input:
    after = ev.get("previous_item_id")
    if after is not None and not isinstance(after, str):
        raise Fault("previous_item_id must be a string", "previous_item_id")
    return e.CreateItem(at, _item(ev.get("item")), after, event_id)


def _truncate(ev: JsonObject, at: float, event_id: str | None, _: str) -> e.Input:
    item_id = _string(ev, "item_id", limit=512)
    return e.TruncateItem(at, item_id, _whole(ev, "content_index"), _whole(ev, "audio_end_ms"), event_id)


def _settings_value(check: Callable[[Any], Any], value: Any, param: str) -> Any:
    try:
        return check(value)
    except ValueError as problem:
        raise Fault(f"{param} {problem}", param) from None


def _respond(ev: JsonObject, at: float, event_id: str | None, _: str) -> e.Input:
    r = ev.get("response")
    if r is None:
        return e.CreateResponse(at, e.ResponseParams(), event_id)
    if not isinstance(r, dict):
        raise Fault("response must be an object", "response")
    p = "response."
    oob = r.get("conversation", "auto")
    if oob not in ("auto", "none"):
        raise Fault("response.conversation must be auto or none", p + "conversation")
    wanted = r.get("output_modalities", r.get("modalities"))
    text_only: bool | None = None
    if wanted is not None:
        if not isinstance(wanted, list) or not wanted or set(map(str, wanted)) - {"audio", "text"}:
            raise Fault('response.output_modalities must be ["audio"] or ["text"]', p + "output_modalities")
        text_only = "audio" not in wanted
    if oob == "none" and text_only is False:
        raise Fault("an out-of-band response is text only", "output_modalities", "invalid_request_error")
    metadata = r.get("metadata")
    if metadata is not None:
        pairs = metadata.items() if isinstance(metadata, dict) else ()
        if not isinstance(metadata, dict) or len(metadata) > 16 or any(
            len(str(k)) > 64 or not isinstance(v, str) or len(v) > 512 for k, v in pairs
        ):
            raise Fault("response.metadata must hold at most 16 short strings", p + "metadata")
    limit = r.get("max_output_tokens", r.get("max_response_output_tokens"))
    if limit in (None, "inf"):
        limit = None
    elif isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 4096:
        raise Fault('response.max_output_tokens must be 1 to 4096, or "inf"', p + "max_output_tokens")
    temperature = r.get("temperature")
    if temperature is not None and (not isinstance(temperature, int | float) or not 0 <= temperature <= 2):
        raise Fault("response.temperature must be from 0 to 2", p + "temperature")
    given = r.get("input")
    if given is not None and (not isinstance(given, list) or len(given) > 500):
        raise Fault("response.input must be a list of at most 500 items", p + "input")
    out = r.get("audio", {}).get("output", {}) if isinstance(r.get("audio", {}), dict) else {}
    named = (out.get("voice") if isinstance(out, dict) else None) or r.get("voice")
    params = e.ResponseParams(
        instructions=_string(r, "instructions", p) if r.get("instructions") is not None else None,
        text_only=text_only,
        tools=tuple(_settings_value(tools, r["tools"], p + "tools")) if r.get("tools") is not None else None,
        tool_choice=_settings_value(tool_choice, r["tool_choice"], p + "tool_choice")
        if r.get("tool_choice") is not None
        else None,
        max_output_tokens=limit,
        temperature=temperature,
        voice=_settings_value(voice, named, p + "voice") if named is not None else None,
        metadata=metadata,
        out_of_band=oob == "none",
        input=tuple(_input(x, f"response.input[{n}]") for n, x in enumerate(given)) if given is not None else None,
    )
    return e.CreateResponse(at, params, event_id)


def _cancel(ev: JsonObject, at: float, event_id: str | None, _: str) -> e.Input:
    response_id = ev.get("response_id")
    if response_id is not None and not isinstance(response_id, str):
        raise Fault("response_id must be a string", "response_id")
    return e.CancelResponse(at, response_id, event_id)


Reader = Callable[[JsonObject, float, str | None, str], e.Input | Append]

_READERS: dict[str, Reader] = {
    "session.update": _update,
    "transcription_session.update": _update_transcription,
    "session.close": lambda ev, at, i, f: e.CloseSession(at, i),
    "input_audio_buffer.append": _append,
    "input_audio_buffer.commit": lambda ev, at, i, f: e.CommitBuffer(at, i),
    "input_audio_buffer.clear": lambda ev, at, i, f: e.ClearBuffer(at, i),
    "conversation.item.create": _create,
    "conversation.item.retrieve": lambda ev, at, i, f: e.RetrieveItem(at, _string(ev, "item_id", limit=512), i),
    "conversation.item.delete": lambda ev, at, i, f: e.DeleteItem(at, _string(ev, "item_id", limit=512), i),
    "conversation.item.truncate": _truncate,
    "response.create": _respond,
    "response.cancel": _cancel,
    "output_audio_buffer.clear": lambda ev, at, i, f: e.ClearOutput(at, i),
}


# --- out -----------------------------------------------------------------------------------------------------------

SERVER_FAULTS = {
    "vad_failed", "stt_failed", "model_load_failed", "engine_unavailable", "internal_state_error", "client_too_slow",
}  # fmt: skip


def error_type(code: str) -> str:
    """OpenAI's `error.type` for one of our codes."""
    if code == "rate_limit_exceeded":
        return "rate_limit_error"
    return "server_error" if code in SERVER_FAULTS else "invalid_request_error"


def error_body(ev: a.ErrorEvent) -> JsonObject:
    return {
        "type": error_type(ev.code),
        "code": ev.code,
        "message": ev.message,
        "param": ev.param,
        "event_id": ev.event_id,
    }


def session_body(session_id: str, settings: Any, model_used: str | None) -> JsonObject:
    """The session object of `session.created` / `session.updated`."""
    body = {"id": session_id, "object": "realtime.session"} | echo(settings)
    if model_used and settings.type == "realtime":
        body["model_used"] = model_used
    return body


def response_body(r: a.ResponseView) -> JsonObject:
    details: JsonObject | None = None
    if r.status == "failed":
        details = {"type": "failed", "error": {"type": "server_error", "code": r.error_code}}
    elif r.status in ("cancelled", "incomplete") and r.reason is not None:
        details = {"type": r.status, "reason": r.reason}
    usage: JsonObject | None = None
    if r.usage is not None:
        given, made, cached, spoken = r.usage
        usage = {
            "total_tokens": given + made,
            "input_tokens": given,
            "output_tokens": made,
            "input_token_details": {"text_tokens": given, "audio_tokens": 0, "cached_tokens": cached},
            "output_token_details": {"text_tokens": 0 if spoken else made, "audio_tokens": made if spoken else 0},
        }
    body: JsonObject = {
        "id": r.id,
        "object": "realtime.response",
        "status": r.status,
        "status_details": details,
        "output": [i.wire() for i in r.output],
        "output_modalities": ["text"] if r.text_only else ["audio"],
        "max_output_tokens": r.max_output_tokens,
        "metadata": r.metadata,
        "usage": usage,
    }
    if r.conversation_id is not None:
        body["conversation_id"] = r.conversation_id
    if not r.text_only:
        body["audio"] = {"output": {"format": ga_format(r.output_format), "voice": r.voice}}
    if r.audio_end_ms is not None:
        body["audio_end_ms"] = r.audio_end_ms
    if r.first_token_ms is not None:
        body["timing"] = {"first_token_ms": r.first_token_ms}
    return body


def _part_body(part: Part) -> JsonObject:
    """In `content_part` events the types are `text` and `audio`, unlike in items."""
    if part.kind == "output_audio":
        return {"type": "audio", "transcript": part.text or ""}
    return {"type": "text", "text": part.text or ""}


def render(ev: a.ServerEvent, dialect: Dialect, audio: bytes = b"", model_used: str | None = None) -> JsonObject | None:
    """The wire event of `ev` without its event id, or None where the dialect does not show it.

    `audio`: the frame's bytes in the session's output format, for AudioDelta.
    """
    if dialect == "beta":
        shown = render(ev, "ga", audio, model_used)
        return None if shown is None else beta(shown)
    extended = dialect == "extended"
    match ev:
        case a.AudioDelta(response_id, item_id, index):
            delta = base64.b64encode(audio).decode()
            return _output("response.output_audio.delta", response_id, item_id, index, delta=delta)
        case a.SpokenDelta(response_id, item_id, index, delta):
            return _output("response.output_audio_transcript.delta", response_id, item_id, index, delta=delta)
        case a.TextDelta(response_id, item_id, index, delta):
            return _output("response.output_text.delta", response_id, item_id, index, delta=delta)
        case a.SessionCreated(session_id, settings):
            return {"type": "session.created", "session": session_body(session_id, settings, model_used)}
        case a.SessionUpdated(session_id, settings):
            return {"type": "session.updated", "session": session_body(session_id, settings, model_used)}
        case a.SessionDone(reason):
            return {"type": "session.done", "reason": reason} if extended else None
        case a.ErrorEvent():
            return {"type": "error", "error": error_body(ev)}
        case a.KeyPressed(key, received_at):
            return {"type": "input_audio_buffer.dtmf_event_received", "event": key, "received_at": received_at}
        case a.SpeechStarted(item_id, start):
            return {"type": "input_audio_buffer.speech_started", "item_id": item_id, "audio_start_ms": start}
        case a.SpeechStopped(item_id, end):
            return {"type": "input_audio_buffer.speech_stopped", "item_id": item_id, "audio_end_ms": end}
        case a.Committed(item_id, previous):
            return {"type": "input_audio_buffer.committed", "item_id": item_id, "previous_item_id": previous}
        case a.TimeoutTriggered(item_id, start, end):
            kind = "input_audio_buffer.timeout_triggered"
            return {"type": kind, "item_id": item_id, "audio_start_ms": start, "audio_end_ms": end}
        case a.Cleared():
            return {"type": "input_audio_buffer.cleared"}
        case a.Discarded(item_id):
            return {"type": "input_audio_buffer.discarded", "item_id": item_id} if extended else None
        case a.Partial(item_id, text, stable):
            kind = "input_audio_buffer.partial_transcription"
            return {"type": kind, "item_id": item_id, "text": text, "stable_chars": stable} if extended else None
        case a.TranscriptionDelta(item_id, delta):
            return _transcription("delta", item_id, delta=delta)
        case a.TranscriptionCompleted(item_id, transcript, seconds):
            usage = {"type": "duration", "seconds": seconds}
            return _transcription("completed", item_id, transcript=transcript, usage=usage)
        case a.TranscriptionFailed(item_id, message):
            error = {"type": "server_error", "code": "stt_failed", "message": message}
            return _transcription("failed", item_id, error=error)
        case a.ItemAdded(item, previous):
            return {"type": "conversation.item.added", "previous_item_id": previous, "item": item.wire()}
        case a.ItemDone(item, previous):
            return {"type": "conversation.item.done", "previous_item_id": previous, "item": item.wire()}
        case a.ItemRetrieved(item):
            return {"type": "conversation.item.retrieved", "item": item.wire()}
        case a.ItemDeleted(item_id):
            return {"type": "conversation.item.deleted", "item_id": item_id}
        case a.ItemTruncated(item_id, end, decided_by, index):
            own = extended and decided_by == "server"
            kind = "conversation.item.assistant_truncated" if own else "conversation.item.truncated"
            return {"type": kind, "item_id": item_id, "content_index": index, "audio_end_ms": end}
        case a.ResponseCreated(view):
            return {"type": "response.created", "response": response_body(view)}
        case a.ResponseDone(view):
            return {"type": "response.done", "response": response_body(view)}
        case a.OutputItemAdded(response_id, index, item):
            body: JsonObject = {"response_id": response_id, "output_index": index, "item": item.wire()}
            return {"type": "response.output_item.added"} | body
        case a.OutputItemDone(response_id, index, item):
            body = {"response_id": response_id, "output_index": index, "item": item.wire()}
            return {"type": "response.output_item.done"} | body
        case a.ContentPartAdded(response_id, item_id, index, part):
            return _output("response.content_part.added", response_id, item_id, index, part=_part_body(part))
        case a.ContentPartDone(response_id, item_id, index, part):
            return _output("response.content_part.done", response_id, item_id, index, part=_part_body(part))
        case a.AudioDone(response_id, item_id, index):
            return _output("response.output_audio.done", response_id, item_id, index)
        case a.SpokenDone(response_id, item_id, index, transcript):
            kind = "response.output_audio_transcript.done"
            return _output(kind, response_id, item_id, index, transcript=transcript)
        case a.TextDone(response_id, item_id, index, text):
            return _output("response.output_text.done", response_id, item_id, index, text=text)
        case a.ArgumentsDelta(response_id, item_id, index, call_id, delta):
            kind = "response.function_call_arguments.delta"
            return _call(kind, response_id, item_id, index, call_id=call_id, delta=delta)
        case a.ArgumentsDone(response_id, item_id, index, call_id, name, arguments):
            kind = "response.function_call_arguments.done"
            return _call(kind, response_id, item_id, index, call_id=call_id, name=name, arguments=arguments)
        case a.OutputStarted(response_id):
            return {"type": "output_audio_buffer.started", "response_id": response_id} if extended else None
        case a.OutputPaused(response_id):
            return {"type": "output_audio_buffer.paused", "response_id": response_id} if extended else None
        case a.OutputResumed(response_id):
            return {"type": "output_audio_buffer.resumed", "response_id": response_id} if extended else None
        case a.OutputStopped(response_id):
            return {"type": "output_audio_buffer.stopped", "response_id": response_id} if extended else None
        case a.OutputCleared(response_id):
            return {"type": "output_audio_buffer.cleared", "response_id": response_id} if extended else None


def _output(kind: str, response_id: str, item_id: str, index: int, **rest: Any) -> JsonObject:
    head = {"type": kind, "response_id": response_id, "item_id": item_id, "output_index": index, "content_index": 0}
    return head | rest


def _call(kind: str, response_id: str, item_id: str, index: int, **rest: Any) -> JsonObject:
    return {"type": kind, "response_id": response_id, "item_id": item_id, "output_index": index} | rest


def _transcription(kind: str, item_id: str, **rest: Any) -> JsonObject:
    name = f"conversation.item.input_audio_transcription.{kind}"
    return {"type": name, "item_id": item_id, "content_index": 0} | rest


class Encoder:
    """Renders events of one connection as JSON text; numbers its event ids."""

    def __init__(self, dialect: Dialect, model_used: str | None = None, playback: bool = False) -> None:
        self.dialect, self.model_used = dialect, model_used
        self._playback = playback  # WebRTC: every dialect shows `output_audio_buffer.*`
        self._count = 0
        self._json = msgspec.json.Encoder()

    def encode(self, ev: a.ServerEvent, audio: bytes = b"") -> str | None:
        """JSON text, or None where the dialect does not show the event."""
        playback = self._playback and isinstance(ev, a.OutputStarted | a.OutputStopped | a.OutputCleared)
        body = render(ev, "extended" if playback else self.dialect, audio, self.model_used)
        if body is None:
            return None
        self._count += 1
        return self._json.encode({"event_id": f"evt_{self._count:08d}"} | body).decode()


__all__ = ["FORMATS", "Append", "Dialect", "Encoder", "Fault", "read", "render"]
