"""Programs under mpirun, with mpi4py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ports import free_port
from world import World

Mpirun = Callable[[int], tuple[str, ...]]


def put_around() -> list[int]:
    import ctypes

    import mscclpp
    from mpi4py import MPI

    group = mscclpp.CommGroup(MPI.COMM_WORLD)
    me, n = group.my_rank, group.nranks
    assert (me, n) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) and group.nranks_per_node == n
    others = [rank for rank in range(n) if rank != me]
    connections = group.make_connection(others, mscclpp.Transport.SharedMemory)
    memory = mscclpp.RawHostBuffer(8 * n)
    view = (ctypes.c_uint64 * n).from_buffer(memory.buffer)
    view[me] = me + 1
    service = mscclpp.ProxyService()
    channels = group.make_proxy_channels(service, memory, connections)
    service.start_proxy()
    for channel in channels.values():
        channel.put_with_signal_and_flush(8 * me, 8 * me, 8)
    for channel in channels.values():
        channel.wait(timeout=60)
    group.barrier()
    service.stop_proxy()
    # An address beside MPI: rank and size come from MPI.
    again = mscclpp.CommGroup(MPI.COMM_WORLD, f"lo:127.0.0.1:{_port(MPI)}")
    again.barrier()
    assert again.my_rank == me
    # A part of the ranks.
    half = MPI.COMM_WORLD.Split(me % 2, me)
    part = mscclpp.CommGroup(mpi_comm=half)
    part.barrier()
    assert part.nranks == half.size
    return list(view)


def _port(mpi: object) -> int:
    world = mpi.COMM_WORLD  # type: ignore[attr-defined]
    return int(world.bcast(free_port() if world.rank == 0 else None, 0))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_mpi_put_into_each_others_memory(world: World, mpirun: Mpirun, ranks: int) -> None:
    running = world.start(ranks, put_around, prefix=mpirun(ranks))
    assert running.results(120) == [list(range(1, ranks + 1))] * ranks
