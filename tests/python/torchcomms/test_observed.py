"""Process groups while torch observes them: profilers, dispatch modes, detailed checks, and compiled models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from torch.distributed.tensor.debug import CommDebugMode
from training import process_group
from versions import checks_all_backends, exchanges_lists


def _ring(is_last: bool) -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    found = torch.zeros(3)
    works = [dist.isend(torch.ones(3) + rank, (rank + 1) % world), dist.irecv(found, (rank - 1) % world)]
    for work in works:
        assert work is not None
        work.wait()
    if rank == 0:
        dist.send(found, 1)
    else:
        dist.recv(found, None if is_last else 0)
    return [found]


def _every_operation() -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(2.0 * world) + 10 * rank
    parts = [torch.zeros_like(mine) for _ in range(world)]
    single, part, exchanged, uneven = torch.zeros(2 * world * world), torch.zeros(2), mine * 0, mine * 0
    summed, rooted, sent, scattered, coalesced = mine + 0, mine + 0, mine + 0, mine * 0, [mine + 0, mine + 1]
    reduced, gathered, swapped = mine * 0, [mine * 0 for _ in range(world)], [mine * 0 for _ in range(world)]
    dist.barrier()
    dist.all_reduce(summed)
    dist.broadcast(sent, 1)
    dist.reduce(rooted, 0)
    dist.all_gather(parts, mine)
    dist.all_gather_into_tensor(single, mine)
    dist.reduce_scatter_tensor(part, mine)
    dist.reduce_scatter(reduced, [mine + r for r in range(world)])
    dist.all_to_all_single(exchanged, mine)
    split = [1, 3] if rank == 0 else [3, 1]
    dist.all_to_all_single(uneven, mine, [1, 3] if rank == 0 else [3, 1], split)
    dist.all_to_all(swapped, [mine + r for r in range(world)])
    dist.gather(mine, gathered if rank == 0 else None)
    dist.scatter(scattered, [mine + r for r in range(world)] if rank == 0 else None)
    with dist.distributed_c10d._coalescing_manager():
        for tensor in coalesced:
            dist.all_reduce(tensor)
    group = dist.group.WORLD
    assert group is not None
    again = mine * 0
    group.alltoall_base(again, mine, [], []).wait()
    kept = [rooted] if rank == 0 else []
    results = [summed, sent, *parts, single, part, reduced, exchanged, uneven, *swapped, *gathered]
    return [*results, *kept, scattered, *coalesced, again, *_ring(False), *_ring(True)]


def observe_everything(folder: Path, is_detailed: bool) -> list[str]:
    if is_detailed:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    with process_group("ringfold", folder):
        expected = _every_operation()
        profiler, counter = torch.profiler.profile(), CommDebugMode()
        for observer in (profiler, counter):
            with observer:
                got = _every_operation()
            assert all(one.equal(other) for one, other in zip(expected, got, strict=True))
        assert counter.get_total_counts() >= 14
        return [str(event.key) for event in profiler.key_averages() if "c10d::" in str(event.key)]


@exchanges_lists
@pytest.mark.parametrize("is_detailed", [False, pytest.param(True, marks=checks_all_backends)])
def test_every_operation_can_be_observed(ranks: Ranks, tmp_path: Path, is_detailed: bool) -> None:
    for seen in ranks.run(2, observe_everything, tmp_path, is_detailed):
        assert {"c10d::alltoall_base_", "c10d::allreduce_", "c10d::send", "c10d::recv_"} <= set(seen)


# --- transfers of a rank with itself ---------------------------------------------------------------------------------


def send_to_itself(folder: Path) -> list[list[float]]:
    with process_group("ringfold", folder):
        rank, world = dist.get_rank(), dist.get_world_size()
        mine, found = torch.arange(6.0) + 100 * rank, [torch.zeros(6) for _ in range(world)]
        turned = torch.zeros(3, 2).t()
        for tag in (0, 3):
            ops = [dist.P2POp(dist.irecv, found[peer], peer, tag=tag) for peer in range(world)]
            ops += [dist.P2POp(dist.isend, mine + tag, peer, tag=tag) for peer in range(world)]
            ops += [
                dist.P2POp(dist.isend, mine.reshape(3, 2).t(), rank, tag=7),
                dist.P2POp(dist.irecv, turned, rank, tag=7),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert turned.equal(mine.reshape(3, 2).t())
        for lonely in (dist.isend, dist.irecv):
            with pytest.raises(RuntimeError, match="itself"):
                dist.batch_isend_irecv([dist.P2POp(lonely, torch.zeros(1), rank)])
        with pytest.raises(RuntimeError, match="sends itself .*0, 2, torch.float32.*receives .*0, 1,"):
            wrong = [dist.P2POp(op, torch.zeros(n), rank) for op, n in ((dist.isend, 2), (dist.irecv, 1))]
            dist.batch_isend_irecv(wrong)
        dist.barrier()
        return [tensor.tolist() for tensor in found]


def test_a_batch_may_send_to_its_own_rank(ranks: Ranks, tmp_path: Path) -> None:
    expected = [[100.0 * peer + 3 + n for n in range(6)] for peer in range(2)]
    assert ranks.run(2, send_to_itself, tmp_path) == [expected] * 2


# --- compiled models -------------------------------------------------------------------------------------------------


def train_compiled(folder: Path) -> list[str]:
    from torch._dynamo import convert_frame

    frames: list[str] = []
    usual = convert_frame._compile

    def compile(code: Any, *arguments: Any, **named: Any) -> Any:
        frames.append(f"{code.co_filename} {code.co_name}")
        return usual(code, *arguments, **named)

    convert_frame._compile = compile
    with process_group("ringfold", folder):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        replica = torch.nn.parallel.DistributedDataParallel(model)
        compiled = torch.compile(replica, backend="eager")
        for _ in range(3):
            compiled(torch.ones(2, 4)).sum().backward()
    return frames


def test_compiled_models_do_not_compile_the_backend(ranks: Ranks, tmp_path: Path) -> None:
    for frames in ranks.run(2, train_compiled, tmp_path):
        assert frames
        assert [frame for frame in frames if "/torchcomms/_" in frame or "ringfold/torch" in frame] == []
