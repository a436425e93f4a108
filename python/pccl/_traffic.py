"""What a peer has sent and received."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes sent to and received from other hosts, and the same through sockets within this host.

    Of TCP connections the bytes of the streams count, of QUIC connections whole packets with headers and retransmissions.
    Shared memory is not counted.
    """

    sent: int
    received: int
    local_sent: int
    local_received: int


@dataclass(frozen=True, slots=True)
class PeerTraffic:
    """The traffic with a peer: its id, its name (``"master"`` for the master), and the bytes."""

    peer: str
    name: str
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """The traffic of a run, in total and per peer."""

    total: Traffic
    peers: tuple[PeerTraffic, ...]
