"""Sends and receives by kernels: all sizes, orders and batches, in graphs, and their failures."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import ringfold.torch  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist
from ranks import Ranks
from test_device_collectives import DEADLINE, TIMEOUT, assert_same_bits, device_comm, device_of, limit
from torchcomms import ReduceOp, TorchComm

# Elements of four bytes: one packet, the last ones that go in packets, the first ones that do not, and many pieces.
COUNTS = (1, 1003, 16_384, 16_385, 300_003, 3_000_001)


def message(
    source: int, target: int, number: int, count: int, dtype: torch.dtype = torch.int32
) -> torch.Tensor:
    generator = torch.Generator().manual_seed((source * 100 + target) * 1000 + number)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype)


def nothing_was_staged(comm: TorchComm) -> bool:
    return not comm.get_backend_impl()._queues


def rings() -> None:
    """Each rank sends to the next, one after the other and in batches, at any alignment."""
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.int32, torch.bfloat16, torch.uint8, torch.complex128):
        for number, count in enumerate(COUNTS):
            for offset in (0, 1 + rank):
                base = torch.zeros(count + offset, dtype=dtype, device="cuda")
                mine, found = base[offset:], torch.zeros(count, dtype=dtype, device="cuda")
                mine.copy_(message(rank, after, number, count, dtype))
                batch = comm.batch_op_create()
                batch.send(mine, after)
                batch.recv(found, before)
                batch.issue(False)
                assert_same_bits(comm, found, message(before, rank, number, count, dtype), f"{dtype} {count}")
    # The one who sends first and the one who receives first wait for each other, not for the host.
    for number, count in enumerate(COUNTS):
        mine, found = message(rank, after, number, count).cuda(), torch.zeros(count, dtype=torch.int32).cuda()
        works = [comm.recv(found, before, True), comm.send(mine, after, True)]
        for work in works if rank % 2 else reversed(works):
            work.wait()
        assert_same_bits(comm, found, message(before, rank, number, count), f"asynchronous, {count}")
    assert nothing_was_staged(comm)
    comm.finalize()


@pytest.mark.parametrize("world", [2, 3, 4])
def test_rings_of_all_sizes(ranks: Ranks, world: int) -> None:
    ranks.run(world, rings, deadline=DEADLINE)


def everyone_to_everyone() -> None:
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    others = [peer for peer in range(size) if peer != rank]
    for counts in ((7,), (70_001,), (7, 70_001, 16_384), (1_000_003, 5)):
        batch = comm.batch_op_create()
        found = {}
        for number, count in enumerate(counts):
            for peer in others:
                found[peer, number] = torch.zeros(count, dtype=torch.int32, device="cuda")
                batch.recv(found[peer, number], peer)
            for peer in reversed(others):
                batch.send(message(rank, peer, number, count).cuda(), peer)
        work = batch.issue(True)
        work.wait()
        for (peer, number), tensor in found.items():
            assert_same_bits(comm, tensor, message(peer, rank, number, counts[number]), f"{counts}")
    # Several in one direction with one rank, small and large.
    for counts in ((5, 6), (50_000, 50_001), (5, 50_000, 6)):
        if rank > 1:
            break
        batch = comm.batch_op_create()
        there = [torch.zeros(count, dtype=torch.int32, device="cuda") for count in counts]
        for number, count in enumerate(counts):
            if rank == 0:
                batch.send(message(0, 1, number, count).cuda(), 1)
            else:
                batch.recv(there[number], 0)
        batch.issue(False)
        for number, count in enumerate(counts):
            if rank == 1:
                assert_same_bits(comm, there[number], message(0, 1, number, count), f"one way, {counts}")
    # One after the other, with collectives in between.
    for number, count in enumerate(COUNTS):
        tensor = torch.ones(1000, device="cuda")
        if rank == 0:
            for peer in others:
                comm.send(message(0, peer, number, count).cuda(), peer, False)
            comm.all_reduce(tensor, ReduceOp.SUM, False)
        else:
            mine = torch.zeros(count, dtype=torch.int32, device="cuda")
            pending = comm.recv(mine, 0, True)
            comm.all_reduce(tensor, ReduceOp.SUM, False)
            pending.wait()
            assert_same_bits(comm, mine, message(0, rank, number, count), f"from the first, {count}")
        assert float(tensor[0]) == size
    assert nothing_was_staged(comm)
    comm.finalize()


@pytest.mark.parametrize("world", [2, 4])
def test_batches_between_all_ranks(ranks: Ranks, world: int) -> None:
    ranks.run(world, everyone_to_everyone, deadline=DEADLINE)


def captured() -> None:
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (1003, 300_003):
        step = torch.zeros(1, dtype=torch.int32, device="cuda")
        mine = torch.zeros(count, dtype=torch.int32, device="cuda")
        found, total = torch.zeros_like(mine), torch.zeros(count, dtype=torch.int64, device="cuda")

        def act(
            step: torch.Tensor = step,
            mine: torch.Tensor = mine,
            found: torch.Tensor = found,
            total: torch.Tensor = total,
        ) -> None:
            step.add_(1)
            mine.copy_(step.expand(mine.numel())).add_(1000 * rank)
            batch = comm.batch_op_create()
            batch.send(mine, after)
            batch.recv(found, before)
            batch.issue(False)
            total.add_(found)
            comm.all_reduce(mine, ReduceOp.MAX, False)
            works = [comm.recv(found, before, True), comm.send(mine, after, True)]
            for work in works:
                work.wait()

        # Loads the kernels.
        act()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            act()
        step.zero_()
        total.zero_()
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        assert total.tolist() == [20 * 1000 * before + 210] * count, total[:3]
        assert found.tolist() == [1000 * (size - 1) + 20] * count
    comm.finalize()


@pytest.mark.parametrize("world", [2, 3])
def test_transfers_can_be_captured_and_replayed(ranks: Ranks, world: int) -> None:
    ranks.run(world, captured, deadline=DEADLINE)


def captured_without_waits() -> None:
    """The pattern of the manual: no work is waited for in the capture, and none is kept."""
    limit()
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (1003, 300_003):
        mine = torch.zeros(count, dtype=torch.int32, device="cuda")
        found, again = torch.zeros_like(mine), torch.zeros_like(mine)
        scaled, factor = torch.ones(8, device="cuda"), torch.tensor(0.5, device="cuda")
        window = comm.new_window(torch.zeros(count, dtype=torch.int32, device="cuda"))
        # Loads the kernels.
        for works in ([comm.send(mine, after, True), comm.recv(found, before, True)],):
            for work in works:
                work.wait()
        comm.all_reduce(scaled.clone(), ReduceOp.PREMUL_SUM(factor), False)
        window.put(mine, after, 0, False)
        window.signal(after, False)
        window.wait_signal(before, False)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            mine.add_(1)
            # Large messages of both directions wait for each other, and temporary tensors are not reused too early.
            comm.send(mine + 1000 * rank, after, True)
            comm.recv(found, before, True)
            comm.send(mine + 5000 * rank, after, True)
            comm.recv(again, before, True)
            window.put(mine * 3, after, 0, True)
            window.signal(after, True)
            window.wait_signal(before, True)
            for _ in range(4):
                torch.zeros_like(mine).fill_(-1)
            comm.all_reduce(scaled, ReduceOp.PREMUL_SUM(factor), True)
        for number in range(1, 11):
            graph.replay()
            torch.cuda.synchronize()
            assert found.tolist() == [number + 1000 * before] * count, found[:3]
            assert again.tolist() == [number + 5000 * before] * count, again[:3]
            table = window.get_tensor()
            assert table is not None and table.tolist() == [3 * number] * count
            comm.barrier(False)
        assert scaled.tolist() == [(size / 2) ** 10] * 8
        window.tensor_deregister()
    comm.finalize()


@pytest.mark.parametrize("world", [2, 3])
def test_captured_transfers_need_no_wait(ranks: Ranks, world: int) -> None:
    ranks.run(world, captured_without_waits, deadline=DEADLINE)


def mismatched(counts: tuple[int, int]) -> str:
    limit()
    comm = device_comm(timeout=5.0)
    rank = comm.get_rank()
    tensor = torch.zeros(counts[rank], device="cuda")
    with pytest.raises(RuntimeError) as caught:
        if rank == 0:
            comm.send(tensor, 1, False)
        else:
            comm.recv(tensor, 0, False)
        torch.cuda.synchronize()
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            comm.all_reduce(torch.zeros(1, device="cuda"), ReduceOp.SUM, True).wait_blocking()
    return str(caught.value)


@pytest.mark.parametrize("counts", [(100, 101), (100_000, 100_001), (100, 100_000)])
def test_transfers_that_differ_fail_and_name_the_rank(ranks: Ranks, counts: tuple[int, int]) -> None:
    texts = ranks.run(2, mismatched, counts, deadline=DEADLINE)
    assert any("rank 0" in text or "rank 1" in text for text in texts), texts


def never_sent(count: int) -> tuple[str, float]:
    limit()
    comm = device_comm()
    comm.barrier(False)
    if comm.get_rank() == 0:
        time.sleep(5.0)
        comm.finalize()
        return "", 0.0
    began = time.monotonic()
    work = comm.recv(torch.zeros(count, device="cuda"), 0, True, timeout=timedelta(seconds=1))
    with pytest.raises(RuntimeError) as caught:
        work.wait_blocking()
    return str(caught.value), time.monotonic() - began


@pytest.mark.parametrize("count", [10, 100_000])
def test_a_receive_has_its_own_timeout(ranks: Ranks, count: int) -> None:
    _, (text, seconds) = ranks.run(2, never_sent, count, deadline=DEADLINE)
    assert "rank 0" in text and 0.9 < seconds < 4.0, (text, seconds)


def opened_late() -> None:
    """torch.distributed without a device: transfers before, across and after the first collective, which opens it."""
    limit()
    torch.cuda.set_device(0)
    dist.init_process_group("ringfold", timeout=timedelta(seconds=TIMEOUT))
    rank = dist.get_rank()
    count = 50_001
    found = [torch.zeros(count, dtype=torch.int32, device="cuda") for _ in range(4)]
    if rank == 0:
        works = [dist.isend(message(0, 1, number, count).cuda(), 1) for number in range(3)]
        dist.all_reduce(torch.ones(1, device="cuda"))
        works.append(dist.isend(message(0, 1, 3, count).cuda(), 1))
    else:
        works = [dist.irecv(found[0], 0)]
        dist.all_reduce(torch.ones(1, device="cuda"))
        works += [dist.irecv(found[number], 0) for number in (1, 2, 3)]
    for work in works:
        assert work is not None
        work.wait()
    if rank == 1:
        for number, tensor in enumerate(found):
            assert torch.equal(tensor.cpu(), message(0, 1, number, count)), number
    dist.destroy_process_group()


def test_transfers_before_and_after_the_first_collective_of_torch_distributed(ranks: Ranks) -> None:
    ranks.run(2, opened_late, deadline=DEADLINE)


def registers() -> None:
    """Memory is registered by itself, also again after it was freed, and given up when it is."""
    limit()
    comm = device_comm()
    device, size = device_of(comm), comm.get_size()
    bulk = 4_000_000

    def reduce(tensor: torch.Tensor) -> None:
        tensor.fill_(comm.get_rank() + 1.0)
        comm.all_reduce(tensor, ReduceOp.SUM, False)
        assert torch.equal(tensor.cpu(), torch.full((tensor.numel(),), size * (size + 1) / 2))

    for _ in range(3):
        tensor = torch.zeros(bulk, device="cuda")
        deadline = time.monotonic() + 10.0
        while not device.is_registered(tensor):
            reduce(tensor)
            assert time.monotonic() < deadline
        reduce(tensor)
        del tensor
        torch.cuda.empty_cache()
        reduce(torch.zeros(bulk, device="cuda"))
        torch.cuda.empty_cache()
    hinted = torch.zeros(bulk, device="cuda")
    comm.tensor_register(hinted)
    comm.barrier(False)
    assert device.is_registered(hinted)
    reduce(hinted)
    torch.cuda.synchronize()
    comm.barrier(False)
    comm.tensor_deregister(hinted)
    assert not device.is_registered(hinted)
    comm.barrier(False)
    reduce(hinted)
    comm.finalize()


@pytest.mark.parametrize("world", [2, 4])
def test_memory_is_registered_by_itself(ranks: Ranks, world: int) -> None:
    ranks.run(world, registers, deadline=DEADLINE)


def not_sharable() -> None:
    """Memory that cannot be registered goes through staging areas, with the same results."""
    limit()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    comm = device_comm()
    rank, size = comm.get_rank(), comm.get_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    for _ in range(3):
        tensor = torch.full((3_000_001,), rank + 1.0, device="cuda")
        comm.all_reduce(tensor, ReduceOp.SUM, False)
        assert torch.equal(tensor.cpu(), torch.full((3_000_001,), size * (size + 1) / 2))
        found = torch.zeros(3_000_001, dtype=torch.int32, device="cuda")
        batch = comm.batch_op_create()
        batch.send(message(rank, after, 0, 3_000_001).cuda(), after)
        batch.recv(found, before)
        batch.issue(False)
        assert_same_bits(comm, found, message(before, rank, 0, 3_000_001), "expandable segments")
    assert not device_of(comm).is_registered(tensor)
    comm.tensor_register(tensor)
    comm.finalize()


def test_memory_that_cannot_be_shared_is_staged(ranks: Ranks) -> None:
    ranks.run(3, not_sharable, deadline=DEADLINE)
