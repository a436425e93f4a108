"""Torch's own switch: with it, "gloo" in a script selects ringfold."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from versions import trains_by_the_switch

CPU = torch.device("cpu")
ON = {"TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1"}

pytestmark = pytest.mark.skipif(
    not hasattr(getattr(dist, "config", None), "use_torchcomms"), reason="this torch has no such switch"
)


def _switch_on() -> None:
    """The ranks' torch was imported before their environment was theirs, so the variable came too late."""
    assert dist.distributed_c10d._TORCHCOMM_AVAILABLE
    dist.config.use_torchcomms = True  # type: ignore[attr-defined]


def use_gloo_by_name() -> list[Any]:
    import torchcomms
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torchcomms._comms import _BackendWrapper

    _switch_on()
    seen: list[Any] = []
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    world = dist.get_world_size()
    assert "TORCHCOMM_RANK" not in os.environ
    backend = dist.group.WORLD._get_backend(CPU)  # type: ignore[union-attr]
    assert isinstance(backend, _BackendWrapper)
    comm = backend.get_comm()
    assert (
        isinstance(comm, torchcomms.TorchComm) and comm.get_backend() == "gloo" and backend.name() == "gloo"
    )
    assert backend.supports_coalescing and backend.get_mem_allocator is not None
    backend._set_default_timeout(timedelta(seconds=20))

    hooked: list[str] = []
    comm.register_pre_hook(lambda op, number, args: hooked.append(str(op).rpartition(".")[2]))
    tensor = torch.full((3,), 2.0)
    dist.all_reduce(tensor)
    parts = [torch.zeros(1)] * world
    dist.all_gather(parts, torch.ones(1))
    work = dist.broadcast(tensor, 0, async_op=True)
    assert work is not None and work.wait() and work.is_completed()
    peer = world - 1 - dist.get_rank()
    inbox = torch.zeros(3)
    ops = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, inbox, peer)]
    for one in dist.batch_isend_irecv(ops) if peer != dist.get_rank() else ():
        one.wait()
    assert hooked[:3] == ["all_reduce", "all_gather", "broadcast"]
    assert peer == dist.get_rank() or hooked[3] == "batch_op_issue" and inbox.equal(tensor)
    seen.append(tensor.tolist())

    # Those that torch makes beside it.
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        one_more = torch.ones(1)
        dist.all_reduce(one_more, group=group)
        seen.append(one_more.item())
        dist.destroy_process_group(group)
    mesh = dist.init_device_mesh("cpu", (world,))
    half = dist.split_group(split_ranks=[[0], list(range(1, world))])
    alone = torch.ones(1)
    dist.all_reduce(alone, group=half)
    seen.append(alone.item())

    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    sharded = torch.nn.Linear(4, 4)
    fully_shard(sharded, mesh=mesh)
    sharded(torch.ones(2, 4)).sum().backward()
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, dist.get_rank())
    seen.append(objects)
    dist.barrier()
    dist.destroy_process_group()
    # It is over already, and neither of these minds.
    backend.shutdown()
    backend.abort()
    return seen


@trains_by_the_switch
def test_gloo_selects_ringfold(ranks: Ranks) -> None:
    for rank, seen in enumerate(ranks.run(3, use_gloo_by_name, env=ON, deadline=120.0)):
        assert seen[0] == [6.0] * 3 and seen[-1] == [0, 1, 2]
        assert seen[1:-1] == [[2.0, 1.0], [2.0, 2.0], [2.0]][rank]


def begin_and_end_often() -> float:
    _switch_on()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world, rank == 0)
    total = 0.0
    for turn in range(4):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(f"turn{turn}", store), rank=rank, world_size=world
        )
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        total += tensor.item()
        dist.destroy_process_group()
    store.add("done", 1)
    until = time.monotonic() + 20.0
    while rank == 0 and store.add("done", 0) < world and time.monotonic() < until:
        time.sleep(0.01)
    return total


def test_process_groups_begin_and_end_often_in_one_process(ranks: Ranks) -> None:
    assert ranks.run(2, begin_and_end_often) == [8.0, 8.0]
