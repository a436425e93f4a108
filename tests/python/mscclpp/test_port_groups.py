"""Successive and concurrent groups in the same processes."""

from __future__ import annotations

import gc
import time

import mscclpp
import pytest
from mscclpp import ProxyService, Transport
from world import DEADLINE, World, await_reached, join, others, rank, reach, size

PROMPT = 20.0
numpy = pytest.importorskip("numpy")


def put_once(group: mscclpp.CommGroup, transport: Transport) -> bool:
    connections = group.make_connection(others(), transport)
    memory = mscclpp.HostBuffer(size(), dtype=numpy.int64)
    memory[rank()] = rank() + 1
    service = ProxyService()
    channels = group.make_port_channels(service, memory, connections)
    service.start_proxy()
    for channel in channels.values():
        channel.put_with_signal(8 * rank(), 8 * rank(), 8)
    for channel in channels.values():
        channel.wait(timeout=DEADLINE)
    group.barrier()
    service.stop_proxy()
    return memory.tolist() == [other + 1 for other in range(size())]


def in_turn() -> list[bool]:
    """Each group is dropped while others may still use it."""
    right = []
    for turn in range(6):
        group = join(f"turn{turn}")
        right.append(put_once(group, Transport.SharedMemory if turn % 2 else Transport.Ethernet))
        if rank() == turn % size():
            await_reached(f"turn {turn}", *others())
            group.communicator.check()
        del group
        gc.collect()
        reach(f"turn {turn}")
    return right


def test_a_group_that_others_have_dropped_has_not_failed(world: World) -> None:
    assert world.run(3, in_turn) == [[True] * 6] * 3


def beside_each_other() -> list[bool]:
    one, other = join("one"), join("other")
    right = [put_once(other, Transport.SharedMemory), put_once(one, Transport.Ethernet)]
    # Connected ranks get the reason.
    connections = one.make_connection(others(), Transport.Ethernet)
    one.barrier()
    if rank() == 0:
        one.communicator.abort("enough of this one")
    with pytest.raises(mscclpp.Error, match="enough of this one"):
        until = time.monotonic() + PROMPT
        while time.monotonic() < until:
            one.communicator.check()
            time.sleep(0.01)
    assert len(connections) == 1
    return [*right, put_once(other, Transport.Ethernet)]


def test_a_group_goes_on_when_another_one_of_the_same_ranks_is_aborted(world: World) -> None:
    assert world.run(2, beside_each_other) == [[True] * 3] * 2
