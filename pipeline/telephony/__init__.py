"""Telephone calls: the media-stream WebSockets of telephony providers, as transports of a session."""

from . import plivo, telnyx, twilio
from .framing import Framing

FRAMINGS: dict[str, type[Framing]] = {"twilio": twilio.Twilio, "telnyx": telnyx.Telnyx, "plivo": plivo.Plivo}

__all__ = ["FRAMINGS", "Framing"]
