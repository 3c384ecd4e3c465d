"""Messages on the data channel: plain JSON, or the envelope that cuts long ones into pieces.

A whole message is {"type": "full_message", "data": base64}; a piece is {"type": "partial_message", "id", "index",
"total", "data"}. Pieces of a message come in a row. Both shapes and plain JSON are read at any time.
"""

from __future__ import annotations

import base64
import binascii
import json

FRAGMENT_BYTES = 900
MAX_FRAGMENTS = 4096


class Unwrapper:
    """Puts the messages of one channel together."""

    def __init__(self) -> None:
        self._id: object = None
        self._pieces: list[bytes] = []

    def feed(self, raw: str | bytes) -> str | bytes | None:
        """The message that `raw` is or completes; None while pieces are missing. Damaged envelopes come back as they
        are, so that the event reader says what is wrong with them."""
        head = raw[:400]
        if not (b"l_message" in head if isinstance(head, bytes) else "l_message" in head):
            return raw
        try:
            envelope = json.loads(raw)
            kind = envelope["type"]
            if kind == "full_message":
                return base64.b64decode(envelope["data"], validate=True)
            if kind != "partial_message":
                return raw
            index, total = int(envelope["index"]), int(envelope["total"])
            data = base64.b64decode(envelope["data"], validate=True)
        except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
            self._pieces = []
            return raw
        if index == 0:
            self._id, self._pieces = envelope.get("id"), []
        if index != len(self._pieces) or envelope.get("id") != self._id or not 0 < total <= MAX_FRAGMENTS:
            self._pieces = []
            return raw
        self._pieces.append(data)
        if len(self._pieces) < total:
            return None
        whole, self._pieces = b"".join(self._pieces), []
        return whole


def wrap(text: str, number: int, limit: int = FRAGMENT_BYTES) -> list[str]:
    """A message in envelopes of at most `limit` bytes; `number` identifies it on the channel."""
    data = text.encode()
    room = (limit - 120) * 3 // 4
    if len(data) <= room:
        return [json.dumps({"type": "full_message", "data": base64.b64encode(data).decode()})]
    pieces = [data[i : i + room] for i in range(0, len(data), room)]
    return [
        json.dumps({"type": "partial_message", "id": f"m{number}", "index": n, "total": len(pieces),
                    "data": base64.b64encode(piece).decode()})
        for n, piece in enumerate(pieces)
    ]  # fmt: skip
