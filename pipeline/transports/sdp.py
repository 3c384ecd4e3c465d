"""Session descriptions: what is wrong with an offer, said by line; and what our answer adds to aiortc's."""

from __future__ import annotations

import re

from aiortc.sdp import SessionDescription

FMTP = "minptime=10;useinbandfec=1"  # asks the sender for redundancy, which aiortc does not know to do


class BadOffer(Exception):
    """An offer that cannot be answered; the message is for the client."""


def check_offer(sdp: str) -> None:
    """Raises BadOffer naming the first bad line, or what the offer lacks."""
    lines = sdp.splitlines()
    if not lines or lines[0].strip() != "v=0":
        raise BadOffer(f"line 1: a session description begins with v=0, not {_quote(lines[0] if lines else '')}")
    for n, line in enumerate(lines, 1):
        if line and not re.match(r"[a-z]=", line):
            raise BadOffer(f"line {n}: not of the form x=value: {_quote(line)}")
    if (failing := _first_failing(lines)) is not None:
        raise BadOffer(f"line {failing}: cannot be read: {_quote(lines[failing - 1])}")
    offer = SessionDescription.parse("\r\n".join(lines) + "\r\n")
    audio = [m for m in offer.media if m.kind == "audio"]
    if not audio:
        raise BadOffer("the offer has no audio section (m=audio)")
    if not any(c.mimeType.lower() == "audio/opus" for m in audio for c in m.rtp.codecs):
        raise BadOffer("no common codec: this server speaks Opus (opus/48000/2)")
    for media in offer.media:
        if media.ice is None or not (media.ice.usernameFragment and media.ice.password):
            raise BadOffer(f"the {media.kind} section has no a=ice-ufrag and a=ice-pwd")
        if not media.dtls or not media.dtls.fingerprints:
            raise BadOffer(f"the {media.kind} section has no a=fingerprint")
        if media.kind != "application" and not media.rtcp_mux:
            raise BadOffer(f"the {media.kind} section has no a=rtcp-mux")


def _quote(line: str) -> str:
    return repr(line[:80])


def _first_failing(lines: list[str]) -> int | None:
    """Number of the first line with which the description no longer parses; None: all of it does."""

    def parses(n: int) -> bool:
        try:
            SessionDescription.parse("\r\n".join(lines[:n]) + "\r\n")
        except Exception:  # the parser raises whatever its conversions raise
            return False
        return True

    if parses(len(lines)):
        return None
    good, bad = 0, len(lines)
    while bad - good > 1:
        middle = (good + bad) // 2
        if parses(middle):
            good = middle
        else:
            bad = middle
    return bad


def finish_answer(sdp: str, public_address: str = "") -> str:
    """Our answer: Opus with redundancy asked for, and each host candidate again under the public address."""
    out: list[str] = []
    for line in sdp.splitlines():
        out.append(line)
        if match := re.match(r"a=rtpmap:(\d+) opus/48000", line):
            out.append(f"a=fmtp:{match.group(1)} {FMTP}")
        host = re.match(r"a=candidate:(\S+) (\d+) udp (\d+) (\d+\.\d+\.\d+\.\d+) (\d+) typ host", line)
        if public_address and host:
            foundation, component, priority, address, port = host.groups()
            out.append(
                f"a=candidate:{foundation}p {component} udp {int(priority) - 1} {public_address} {port} "
                f"typ srflx raddr {address} rport {port}"
            )
    return "\r\n".join(out) + "\r\n"
