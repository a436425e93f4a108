"""Replicas of several ranks from Python."""

from __future__ import annotations

import secrets

import pccl
import pytest
from peers import DEADLINE, begin, together


def replica(master: str, name: str, stated: tuple[int, int]) -> list[pccl.Communicator]:
    return [
        pccl.Communicator(master, rank, name=f"{name}{rank}", replica=stated) for rank in range(stated[1])
    ]


def test_a_replica_is_admitted_as_a_whole(master: str) -> None:
    first, second = (secrets.randbits(128), 2), (secrets.randbits(128), 2)
    (a0, a1), (b0, b1) = replica(master, "a", first), replica(master, "b", second)
    waiting = begin(a0.connect)
    waiting.wait_until_blocked()
    a1.connect()
    waiting.result(DEADLINE)
    assert (a0.world_size, a1.world_size) == (1, 1)
    half = begin(b0.connect)
    half.wait_until_blocked()
    assert together(a0.are_peers_pending, a1.are_peers_pending) == [False, False]
    whole = begin(b1.connect)
    while a0.world_size < 2:
        together(a0.update_topology, a1.update_topology)
    half.result(DEADLINE)
    whole.result(DEADLINE)
    assert [comm.world_size for comm in (a0, a1, b0, b1)] == [2] * 4
    # Its ranks cannot be started again one by one.
    late = pccl.Communicator(master, replica=second)
    with pytest.raises(pccl.PCCLError, match="invalid replica: it was admitted before"):
        late.connect()


def test_an_invalid_replica_is_rejected(master: str) -> None:
    with pytest.raises(pccl.PCCLError, match="invalid replica of 0 ranks"):
        pccl.Communicator(master, replica=(1, 0))
    with pytest.raises(OverflowError):
        pccl.Communicator(master, replica=(2**128, 2))
