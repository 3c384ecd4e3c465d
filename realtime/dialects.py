"""The dialects (SPEC section 10): how one is chosen, and `beta`, OpenAI's names and flat session from before GA, as a pure
function from GA's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from .settings import FIELDS, audio_format

JsonObject = dict[str, Any]
Dialect = Literal["ga", "extended", "beta"]
BETA_PROTOCOL = "openai-beta.realtime-v1"


# --- which one -----------------------------------------------------------------------------------------------------

# Keys of a flat session that GA does not have at its top.
_BETA_ONLY = {
    x.flat.split(".")[0] for x in FIELDS if x.flat != x.ga and not x.ga.startswith(x.flat.split(".")[0])
} | {"modalities", "temperature"}  # fmt: skip


def asked_for(query: str | None, beta_header: str | None, protocols: Sequence[str]) -> Dialect | None:
    """The dialect that a connection asks for: `?events=`, the header `OpenAI-Beta`, the offered subprotocols. None: it
    does not say, and the first `session.update` decides."""
    match query:
        case "ga" | "extended" | "beta":
            return query
    if BETA_PROTOCOL in protocols or "realtime=v1" in (beta_header or "").replace(" ", "").split(","):
        return "beta"
    return None


def of_first_update(session: Any) -> Dialect:
    """The dialect of a connection that has not asked for one, by the session object of its first update."""
    if not isinstance(session, dict):
        return "ga"
    match session.get("events"):
        case "extended" | "beta" as named:
            return "extended" if named == "extended" else "beta"
    return "beta" if "type" not in session and _BETA_ONLY & session.keys() else "ga"


# --- beta ----------------------------------------------------------------------------------------------------------

_BETA_NAMES = {
    "response.output_audio.": "response.audio.",
    "response.output_audio_transcript.": "response.audio_transcript.",
    "response.output_text.": "response.text.",
    "conversation.item.added": "conversation.item.created",
}
_GA_ONLY = {"conversation.item.done", "input_audio_buffer.timeout_triggered", "input_audio_buffer.dtmf_event_received"}
_BETA_PARTS = {"output_text": "text", "output_audio": "audio"}


def beta(event: JsonObject) -> JsonObject | None:
    """GA's event under its beta name and shape; None where beta has none."""
    kind = event["type"]
    if kind in _GA_ONLY:
        return None
    for ga, old in _BETA_NAMES.items():
        if kind.startswith(ga):
            kind = old + kind.removeprefix(ga)
    out = event | {"type": kind}
    if "item" in out:
        out["item"] = _beta_item(out["item"])
    if kind == "response.function_call_arguments.done":
        del out["name"]
    if "response" in out:
        out["response"] = _beta_response(out["response"])
    if "session" in out:
        if out["session"]["type"] == "transcription":
            out["type"] = "transcription_" + kind
        out["session"] = beta_session(out["session"])
    return out


def _beta_item(item: JsonObject) -> JsonObject:
    if "content" not in item:
        return item
    return item | {"content": [p | {"type": _BETA_PARTS.get(p["type"], p["type"])} for p in item["content"]]}


def _beta_modalities(ga: Sequence[str]) -> list[str]:
    return ["text", "audio"] if "audio" in ga else ["text"]


def _beta_response(response: JsonObject) -> JsonObject:
    out = {k: v for k, v in response.items() if k not in ("audio", "output_modalities")}
    out["output"] = [_beta_item(item) for item in response["output"]]
    out["modalities"] = _beta_modalities(response["output_modalities"])
    if "audio" in response:
        given = response["audio"]["output"]
        out |= {"voice": given["voice"], "output_audio_format": audio_format(given["format"])}
    return out


def beta_session(session: JsonObject) -> JsonObject:
    """GA's nested session as beta's flat one; our own settings stay beside it."""
    moved = ("type", "audio", "output_modalities", "max_output_tokens")
    out = {k: v for k, v in session.items() if k not in moved}
    given = session["audio"]["input"]
    out |= {
        "input_audio_format": audio_format(given["format"]),
        "input_audio_transcription": given["transcription"],
        "input_audio_noise_reduction": given["noise_reduction"],
        "turn_detection": given["turn_detection"],
    }
    if (spoken := session["audio"].get("output")) is not None:
        out |= {
            "output_audio_format": audio_format(spoken["format"]),
            "voice": spoken["voice"],
            "speed": spoken["speed"],
            "modalities": _beta_modalities(session["output_modalities"]),
            "max_response_output_tokens": session["max_output_tokens"],
        }
    return out
