"""Windows of CUDA tensors: puts, gets and signals on streams and in graphs, live views, and failures."""

from __future__ import annotations

import time

import pytest
import torch
from ranks import Ranks
from test_device_collectives import DEADLINE, device_comm, limit
from torchcomms import TorchCommWinAccessType

COUNT = 100_003


def puts_and_signals() -> None:
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    # One row for each rank that puts, and a different size on each rank.
    table = torch.zeros(size * COUNT + rank, dtype=torch.int64, device="cuda")
    window = comm.new_window(table)
    assert window.device.type == "cuda" and window.get_size() == table.nbytes
    assert window.get_attr(after).access_type is TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED
    for step in range(1, 21):
        for async_op in (False, True):
            mine = torch.full((COUNT,), step * 1000 + rank, dtype=torch.int64, device="cuda")
            window.put(mine, after, rank * COUNT, async_op).wait()
            window.signal(after, async_op).wait()
            window.wait_signal(before, async_op).wait()
            row = table[before * COUNT : (before + 1) * COUNT]
            assert row.tolist() == [step * 1000 + before] * COUNT
            # The other side has read it.
            window.signal(before, async_op).wait()
            window.wait_signal(after, async_op).wait()
    found = torch.zeros(7, dtype=torch.int64, device="cuda")
    window.get(found, after, rank * COUNT + 5, False)
    assert found.tolist() == [20_000 + rank] * 7
    theirs = window.map_remote_tensor(after)
    assert theirs.shape == (size * COUNT + after,) and theirs.device.type == "cuda"
    theirs[rank * COUNT] = -7
    torch.cuda.synchronize()
    window.signal(after, False)
    window.wait_signal(before, False)
    assert int(table[before * COUNT]) == -7
    del theirs
    window.tensor_deregister()
    comm.finalize()


@pytest.mark.parametrize("world", [2, 4])
def test_puts_arrive_before_their_signal(ranks: Ranks, world: int) -> None:
    ranks.run(world, puts_and_signals, deadline=DEADLINE)


def captured() -> None:
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    table = torch.zeros(COUNT, device="cuda")
    window = comm.new_window(table)
    step, mine = torch.zeros(1, device="cuda"), torch.zeros(COUNT, device="cuda")
    total = torch.zeros(COUNT, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.add_(1.0)
        mine.copy_(step.expand(COUNT)).add_(100.0 * rank)
        window.put(mine, after, 0, False)
        window.signal(after, False)
        window.wait_signal(before, False)
        total.add_(table)
        window.signal(before, True).wait()
        window.wait_signal(after, True).wait()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert total.tolist() == [210.0 + 20 * 100.0 * before] * COUNT
    window.tensor_deregister()
    comm.finalize()


def test_windows_in_graphs(ranks: Ranks) -> None:
    ranks.run(2, captured, deadline=DEADLINE)


def refused() -> None:
    limit()
    comm = device_comm()
    rank = comm.get_rank()
    window = comm.new_window(torch.zeros(10 if rank == 0 else 0, device="cuda"))
    errors = [
        (lambda: window.put(torch.zeros(2, device="cuda"), 0, 9, False), "past the end"),
        (lambda: window.put(torch.zeros(1, device="cuda"), 1, 0, False), "past the end"),
        (lambda: window.put(torch.zeros(2, dtype=torch.int32, device="cuda"), 0, 0, False), "element type"),
        (lambda: window.put(torch.zeros(2), 0, 0, False), "device cpu"),
        (lambda: window.signal(2, False), "out of range"),
        (lambda: window.tensor_register(torch.zeros(2, device="cuda")), "already"),
    ]
    for act, text in errors:
        with pytest.raises(RuntimeError, match=text):
            act()
    window.tensor_deregister()
    cpu = comm.new_window(torch.zeros(4))
    with pytest.raises(RuntimeError, match="device cuda"):
        cpu.put(torch.zeros(2, device="cuda"), 0, 0, False)
    cpu.tensor_deregister()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    with pytest.raises(RuntimeError, match="expandable"):
        comm.new_window(torch.zeros(4_000_000, device="cuda"))
    comm.barrier(False)
    comm.finalize()


def test_errors_say_what_is_wrong(ranks: Ranks) -> None:
    ranks.run(2, refused, deadline=DEADLINE)


def never_signalled() -> tuple[str, float]:
    limit()
    comm = device_comm()
    window = comm.new_window(torch.zeros(4, device="cuda"))
    comm.barrier(False)
    if comm.get_rank() == 0:
        time.sleep(4.0)
        return "", 0.0
    began = time.monotonic()
    work = window.wait_signal(0, True, timeout=1.0)
    with pytest.raises(RuntimeError) as caught:
        work.wait_blocking()
    return str(caught.value), time.monotonic() - began


def test_a_wait_for_a_signal_has_its_own_timeout(ranks: Ranks) -> None:
    _, (text, seconds) = ranks.run(2, never_signalled, deadline=DEADLINE)
    assert "rank 0" in text and 0.9 < seconds < 3.5, (text, seconds)
