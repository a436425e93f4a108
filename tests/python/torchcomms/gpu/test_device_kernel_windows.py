"""Windows in kernels of users: puts, gets and signals, in graphs, mixed with host calls, and failures."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import mscclpp
import pytest
import torch
from ranks import Ranks
from test_device_collectives import DEADLINE, device_comm, limit, raised_within, say
from torchcomms import TorchCommWindow

KERNELS = Path(__file__).parent / "kernels"
# An odd number of elements, so that rows of the table are aligned to 8 bytes only.
COUNT = 100_003
ROW = 8 * COUNT


class Kernels:
    """The kernels of ``windows.cu`` for one window. They are loaded before any of them runs."""

    NAMES = ("ring", "acknowledge", "put", "wait", "get", "add")

    def __init__(self, window: TorchCommWindow) -> None:
        self.handle = window.get_device_window()
        self.failures = torch.zeros(1, dtype=torch.int32, device="cuda")
        # Other streams than the current one use it, too.
        torch.cuda.synchronize()
        self._kernels = {
            name: mscclpp.KernelBuilder("windows.cu", name, KERNELS).get_compiled_kernel()
            for name in self.NAMES
        }

    def launch(self, name: str, *parameters: Any, threads: int = 1024) -> None:
        """Launches a kernel of one block on the current stream."""
        stream = torch.cuda.current_stream()
        self._kernels[name].launch_kernel(mscclpp.pack(*parameters), 1, threads, 0, stream)

    def ring(self, row: torch.Tensor) -> None:
        self.launch("ring", self.handle.raw, row, ctypes.c_size_t(row.nbytes), self.failures)

    def acknowledge(self) -> None:
        self.launch("acknowledge", self.handle.raw, self.failures, threads=1)

    def put(self, row: torch.Tensor, offset: int, to: int) -> None:
        """Puts and signals."""
        sizes = (ctypes.c_size_t(row.nbytes), ctypes.c_size_t(offset))
        self.launch("put", ctypes.c_size_t(self.handle.address), row, *sizes, self.failures, to)

    def wait(self, source: int) -> None:
        self.launch("wait", ctypes.c_size_t(self.handle.address), self.failures, source, threads=1)

    def get(self, target: torch.Tensor, offset: int, source: int) -> None:
        sizes = (ctypes.c_size_t(target.nbytes), ctypes.c_size_t(offset))
        self.launch("get", ctypes.c_size_t(self.handle.address), target, *sizes, self.failures, source)

    def add(self, number: int, rank: int) -> None:
        self.launch("add", self.handle.raw, ctypes.c_size_t(number), rank)


def exchanges() -> None:
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    # One row for each rank that puts, and a different size on each rank.
    table = torch.zeros(size * COUNT + rank, dtype=torch.int64, device="cuda")
    window = comm.new_window(table)
    kernels = Kernels(window)
    handle = kernels.handle
    assert (handle.rank, handle.size, len(handle.raw)) == (rank, size, 24) and handle.address > 0
    comm.barrier(False)
    for step in range(1, 11):
        mine = torch.full((COUNT,), step * 1000 + rank, dtype=torch.int64, device="cuda")
        kernels.ring(mine)
        row = table[before * COUNT : (before + 1) * COUNT]
        assert row.tolist() == [step * 1000 + before] * COUNT
        kernels.acknowledge()
    # What this rank has put into the next one, and a part of it at an odd address.
    found = torch.zeros(COUNT, dtype=torch.int64, device="cuda")
    kernels.get(found, rank * ROW, after)
    assert found.tolist() == [10_000 + rank] * COUNT
    part = torch.zeros(15, dtype=torch.uint8, device="cuda")
    kernels.get(part[1:12], rank * ROW + 3, after)
    whole = found[:2].view(torch.uint8)
    assert part.tolist() == [0, *whole[3:14].tolist(), 0, 0, 0]
    # The next rank's memory itself.
    comm.barrier(False)
    kernels.add(7, after)
    torch.cuda.synchronize()
    comm.barrier(False)
    row = table[before * COUNT : (before + 1) * COUNT]
    assert row.tolist() == [10_007 + before] * COUNT
    assert table[size * COUNT :].tolist() == [7] * rank
    assert kernels.failures.item() == 0
    window.tensor_deregister()
    with pytest.raises(RuntimeError, match="closed"):
        _ = handle.raw
    comm.finalize()


@pytest.mark.parametrize("world", [2, 3])
def test_puts_of_kernels_arrive_before_their_signal(ranks: Ranks, world: int) -> None:
    ranks.run(world, exchanges, deadline=DEADLINE)


def captured() -> None:
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    before = (rank - 1) % size
    table = torch.zeros(size * COUNT, dtype=torch.int64, device="cuda")
    window = comm.new_window(table)
    kernels = Kernels(window)
    step, total = (torch.zeros(n, dtype=torch.int64, device="cuda") for n in (1, COUNT))
    mine = torch.zeros(COUNT, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.add_(1)
        mine.copy_(step.expand(COUNT)).add_(100 * rank)
        kernels.ring(mine)
        total.add_(table[before * COUNT : (before + 1) * COUNT])
        kernels.acknowledge()
    for _ in range(10):
        graph.replay()
    # Outside of the graph the counts go on.
    kernels.ring(mine)
    kernels.acknowledge()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert total.tolist() == [210 + 20 * 100 * before] * COUNT
    assert kernels.failures.item() == 0
    window.tensor_deregister()
    comm.finalize()


@pytest.mark.parametrize("world", [2, 3])
def test_kernels_with_windows_in_graphs(ranks: Ranks, world: int) -> None:
    ranks.run(world, captured, deadline=DEADLINE)


def mixed() -> None:
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    table = torch.zeros(COUNT, dtype=torch.int64, device="cuda")
    window = comm.new_window(table)
    kernels = Kernels(window)
    for step in range(1, 13):
        mine = torch.full((COUNT,), step * 1000 + rank, dtype=torch.int64, device="cuda")
        # All combinations of who signals and who waits.
        if step % 2:
            kernels.put(mine, 0, after)
        else:
            window.put(mine, after, 0, False)
            window.signal(after, False)
        if step // 2 % 2:
            kernels.wait(before)
        else:
            window.wait_signal(before, False)
        assert table.tolist() == [step * 1000 + before] * COUNT
        if step % 3:
            kernels.acknowledge()
        else:
            window.signal(before, step % 2 == 0).wait()
            window.wait_signal(after, step % 2 == 0).wait()
    assert kernels.failures.item() == 0
    window.tensor_deregister()
    comm.finalize()


@pytest.mark.parametrize("world", [2, 3])
def test_kernels_and_host_calls_count_the_same_signals(ranks: Ranks, world: int) -> None:
    ranks.run(world, mixed, deadline=DEADLINE)


def never_signalled() -> tuple[str, float, int]:
    limit()
    comm = device_comm()
    window = comm.new_window(torch.zeros(4, device="cuda"))
    kernels = Kernels(window)
    comm.barrier(False)
    if comm.get_rank() == 0:
        time.sleep(4.0)
        return "", 0.0, 0
    comm.set_timeout(1.0)
    began = time.monotonic()
    kernels.wait(0)
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    with pytest.raises(RuntimeError) as caught:
        window.signal(0, False)
    with pytest.raises(RuntimeError, match="rank 0"):
        _ = kernels.handle.raw
    return str(caught.value), seconds, int(kernels.failures.item())


def test_a_wait_in_a_kernel_ends_after_the_timeout(ranks: Ranks) -> None:
    _, (text, seconds, failures) = ranks.run(2, never_signalled, deadline=DEADLINE)
    assert "rank 0" in text and 0.9 < seconds < 3.5 and failures == 1, (text, seconds, failures)


def waits_for_ever() -> None:
    limit()
    comm = device_comm()
    window = comm.new_window(torch.zeros(4, device="cuda"))
    kernels = Kernels(window)
    comm.barrier(False)
    torch.cuda.synchronize()
    say("going")
    if comm.get_rank() == 1:
        # Nothing of it runs on the device when it is killed.
        time.sleep(DEADLINE)

    def wait() -> None:
        kernels.wait(1)
        torch.cuda.synchronize()
        assert kernels.failures.item() == 1
        window.signal(1, False)

    text = raised_within(12.0, wait)
    say(f"raised {time.time():.6f} {text}")
    comm.finalize()


def test_a_wait_in_a_kernel_ends_with_the_rank(ranks: Ranks) -> None:
    running = ranks.start(3, waits_for_ever)
    for rank in range(3):
        running.wait_for(rank, "going", DEADLINE)
    time.sleep(0.5)
    killed = time.time()
    running.kill(1)
    for rank in (0, 2):
        line = running.wait_for(rank, "raised", DEADLINE)
        _, when, text = line.split(" ", 2)
        assert float(when) - killed < 10.0 and "rank 1" in text, line
    assert [running.outcomes()[rank].error for rank in (0, 2)] == [None, None]


def outside() -> tuple[str, list[float], int]:
    limit()
    comm = device_comm()
    rank = comm.get_rank()
    tensor = torch.zeros(4, device="cuda")
    window = comm.new_window(tensor)
    kernels = Kernels(window)
    comm.barrier(False)
    if rank == 1:
        kernels.put(torch.ones(4, device="cuda"), 4, 0)
        torch.cuda.synchronize()
    with pytest.raises(RuntimeError) as caught:
        for _ in range(100):
            # Of rank 0 only one may fail, when rank 1 has made its call.
            window.signal(rank, False)
            time.sleep(0.1)
    torch.cuda.synchronize()
    return str(caught.value), tensor.tolist(), int(kernels.failures.item())


def test_a_put_outside_of_a_window_does_nothing_but_fail(ranks: Ranks) -> None:
    for rank, (text, values, failures) in enumerate(ranks.run(2, outside, deadline=DEADLINE)):
        assert "rank 1" in text and values == [0.0] * 4 and failures == rank, (rank, text, values, failures)
