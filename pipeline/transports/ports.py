"""ICE on a given range of UDP ports: aioice binds any free port and has no setting for it."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

from aioice.candidate import Candidate, candidate_foundation, candidate_priority
from aioice.ice import Connection, StunProtocol, server_reflexive_candidate
from aiortc import RTCPeerConnection


def gather_within(pc: RTCPeerConnection, ports: tuple[int, int]) -> None:
    """Have the peer connection's sockets in this range (first, last); (0, 0): anywhere. Call before it gathers."""
    if ports == (0, 0):
        return
    transports = {t.receiver.transport.transport for t in pc.getTransceivers()}
    if pc.sctp is not None:
        transports.add(pc.sctp.transport.transport)
    for transport in transports:
        connection = transport.iceGatherer._connection
        plain = connection.get_component_candidates

        async def gather(
            component: int, addresses: list[str], timeout: int = 5, connection: Connection = connection, plain: Any = plain
        ) -> list[Candidate]:
            protocols = [p for a in addresses if (p := await _bind(connection, component, a, ports)) is not None]
            connection._protocols += protocols
            found: list[Candidate] = [p.local_candidate for p in protocols]
            if connection.stun_server:
                asked = [server_reflexive_candidate(p, connection.stun_server) for p in protocols]
                answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), timeout)
                found += [a[0] for a in answers if not isinstance(a, BaseException)]
            own, connection.stun_server = connection.stun_server, None
            try:
                relayed: list[Candidate] = await plain(component, [], timeout)  # from the TURN server, if any
                return found + relayed
            finally:
                connection.stun_server = own

        connection.get_component_candidates = gather  # type: ignore[method-assign]


async def _bind(connection: Connection, component: int, address: str, ports: tuple[int, int]) -> StunProtocol | None:
    """A host candidate on a free port of the range; None where none is free."""
    choices = list(range(ports[0], ports[1] + 1))
    random.shuffle(choices)
    for port in choices:
        try:
            _, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: StunProtocol(connection), local_addr=(address, port)
            )
        except OSError:
            continue
        sock = protocol.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        protocol.local_candidate = Candidate(
            foundation=candidate_foundation("host", "udp", address),
            component=component,
            transport="udp",
            priority=candidate_priority(component, "host"),
            host=address,
            port=port,
            type="host",
        )
        return protocol
    return None
