"""All-reduces between the devices of several hosts, which are one machine here: ``RINGFOLD_HOST`` keeps the ranks apart."""

from __future__ import annotations

import os
import time

import pytest
import torch
from ranks import Ranks
from test_device_collectives import (
    BULK,
    DEADLINE,
    LARGE,
    assert_same_bits,
    device_comm,
    device_of,
    limit,
    raised_within,
    say,
)
from torchcomms import ReduceOp, TorchComm

# More pieces than slots.
PIECES = 41_000_003


def hosts_comm(hosts: list[int], timeout: float = 15.0) -> TorchComm:
    """A communicator whose ranks are on these hosts."""
    rank = int(os.environ["RANK"])
    # Ranks of several hosts never share a device otherwise. Operations of a second group leave room for others.
    first = device_comm("first")
    os.environ["RINGFOLD_HOST"] = f"host {hosts[rank]}"
    comm = device_comm("hosts", timeout)
    assert not device_of(comm).native.is_on_one_host
    first.finalize()
    return comm


def on_rank(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + count)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(-1000, 1000, (count,), generator=generator, dtype=dtype)


def sum_of(hosts: list[int], count: int, dtype: torch.dtype) -> torch.Tensor:
    """Each host's sum first, as the devices do."""
    sums = []
    for host in sorted(set(hosts)):
        ranks = [on_rank(rank, count, dtype) for rank in range(len(hosts)) if hosts[rank] == host]
        total = ranks[0]
        for one in ranks[1:]:
            total = total + one
        sums.append(total)
    # Of two hosts, so the order does not matter.
    return sums[0] + sums[1]


def sums(hosts: list[int]) -> None:
    limit()
    comm = hosts_comm(hosts)
    rank, size = comm.get_rank(), comm.get_size()
    for dtype, count in (
        *((torch.float32, count) for count in (1, 1003, BULK, LARGE, PIECES)),
        *((torch.bfloat16, BULK), (torch.int64, LARGE), (torch.float64, 7)),
    ):
        expected = sum_of(hosts, count, dtype)
        for async_op in (False, True):
            tensor = on_rank(rank, count, dtype).cuda()
            work = comm.all_reduce(tensor, ReduceOp.SUM, async_op)
            work.wait()
            assert_same_bits(comm, tensor, expected, f"{dtype}, {count} elements, async {async_op}")
        say("summed", dtype, count)
    for count in (1003, LARGE):
        tensor = on_rank(rank, count, torch.float32).cuda()
        comm.all_reduce(tensor, ReduceOp.AVG, False)
        assert_same_bits(comm, tensor, sum_of(hosts, count, torch.float32) / size, f"average of {count}")
        tensor = torch.full((count,), rank, dtype=torch.int32, device="cuda")
        comm.all_reduce(tensor, ReduceOp.MAX, False)
        assert tensor.tolist() == [size - 1] * count
    # With operations that are staged in between, on several streams.
    tensor = torch.full((BULK,), 1.0, device="cuda")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for step in range(4):
        comm.all_reduce(tensor, ReduceOp.SUM, False)
        whole = torch.zeros(size, device="cuda")
        comm.all_gather_single(whole, torch.full((1,), float(rank + step), device="cuda"), False)
        assert whole.tolist() == [float(other + step) for other in range(size)]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            comm.all_reduce(tensor, ReduceOp.MAX, True).wait()
        torch.cuda.current_stream().wait_stream(side)
    assert tensor.tolist() == [float(size**4)] * BULK
    comm.finalize()


@pytest.mark.parametrize("hosts", [[0, 1], [0, 0, 1], [0, 1, 0, 1]])
def test_sums_of_two_hosts(ranks: Ranks, hosts: list[int]) -> None:
    ranks.run(len(hosts), sums, hosts, deadline=DEADLINE)


def captured(hosts: list[int]) -> None:
    limit()
    comm = hosts_comm(hosts)
    size = comm.get_size()
    for count in (1003, LARGE):
        tensor = torch.ones(count, device="cuda")
        comm.all_reduce(tensor, ReduceOp.SUM, False)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.fill_(1.0)
            comm.all_reduce(tensor, ReduceOp.SUM, False)
            tensor.add_(1.0)
            comm.all_reduce(tensor, ReduceOp.SUM, False)
        for _ in range(5):
            tensor.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert tensor.tolist() == [float((size + 1) * size)] * count
    comm.finalize()


def test_graphs_reduce_between_hosts(ranks: Ranks) -> None:
    ranks.run(4, captured, [0, 0, 1, 1], deadline=DEADLINE)


def one_is_late(hosts: list[int]) -> None:
    limit()
    comm = hosts_comm(hosts)
    tensor = torch.ones(LARGE, device="cuda")
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    comm.barrier(False)
    if comm.get_rank() == len(hosts) - 1:
        time.sleep(2.0)
    began = time.monotonic()
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    assert time.monotonic() - began < 1.0, "the host waited"
    torch.cuda.synchronize()
    comm.finalize()


def test_the_host_does_not_wait_for_other_hosts(ranks: Ranks) -> None:
    ranks.run(4, one_is_late, [0, 0, 1, 1], deadline=DEADLINE)


def never_comes(hosts: list[int], late: int) -> str:
    limit()
    comm = hosts_comm(hosts, 4.0)
    tensor = torch.ones(BULK, device="cuda")
    comm.all_reduce(tensor, ReduceOp.MAX, False)
    torch.cuda.synchronize()
    comm.barrier(False)
    if comm.get_rank() == late:
        time.sleep(14.0)
        return ""
    return raised_within(14.0, lambda: comm.all_reduce(tensor, ReduceOp.MAX, False))


@pytest.mark.parametrize("late", [1, 2])
def test_a_host_that_does_not_come_is_named(ranks: Ranks, late: int) -> None:
    texts = ranks.run(4, never_comes, [0, 0, 1, 1], late, deadline=DEADLINE)
    assert all(f"rank {late}" in text for rank, text in enumerate(texts) if rank != late), texts


def reduces_for_ever(hosts: list[int], victim: int) -> None:
    limit()
    comm = hosts_comm(hosts)
    tensor = torch.ones(BULK, device="cuda")
    comm.all_reduce(tensor, ReduceOp.MAX, False)
    torch.cuda.synchronize()
    say("going")
    if comm.get_rank() == victim:
        # Nothing of it runs on the device when it is killed.
        time.sleep(DEADLINE)
    text = raised_within(12.0, lambda: comm.all_reduce(tensor, ReduceOp.MAX, False))
    say("raised", text)
    comm.finalize()


@pytest.mark.parametrize("victim", [1, 2])
def test_a_killed_rank_of_a_host_is_named(ranks: Ranks, victim: int) -> None:
    running = ranks.start(4, reduces_for_ever, [0, 0, 1, 1], victim)
    for rank in range(4):
        running.wait_for(rank, "going", DEADLINE)
    time.sleep(0.5)
    running.kill(victim)
    others = [rank for rank in range(4) if rank != victim]
    for rank in others:
        assert f"rank {victim}" in running.wait_for(rank, "raised", DEADLINE)
    assert [running.outcomes()[rank].error for rank in others] == [None] * 3
