"""distwrap: making, splitting and destroying groups, and what is refused."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as plain
import torchcomms
from ranks import Ranks
from test_distwrap import MODES, _done
from torchcomms import distwrap as dist
from torchcomms.distwrap._backend import backends_by_device
from versions import VERSION, mixes_devices


def _sum(group: Any = None) -> float:
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def meet_by(how: str, use_torchcomms: bool, folder: str) -> list[Any]:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    arguments: dict[str, Any] = {"timeout": timedelta(seconds=30)}
    if how == "store":
        arguments |= {"store": dist.FileStore(f"{folder}/store", world), "rank": rank, "world_size": world}
    elif how == "method":
        arguments |= {"init_method": f"file://{folder}/file", "rank": rank, "world_size": world}
    # A device is ignored with torchcomms; there may be none.
    if use_torchcomms:
        arguments["device_id"] = torch.device("cuda:0")
    backend = "cpu:gloo" if how == "method" else "gloo"
    dist.init_process_group(backend, use_torchcomms=use_torchcomms, **arguments)
    seen = [dist.get_rank(), dist.get_world_size(), _sum(), dist.get_backend(), dist.get_backend_config()]
    dist.destroy_process_group()
    return seen


@pytest.mark.parametrize("use_torchcomms", MODES)
@pytest.mark.parametrize("how", ["environment", "store", "method"])
def test_ranks_meet_as_in_torch(ranks: Ranks, tmp_path: Path, how: str, use_torchcomms: bool) -> None:
    for rank, seen in enumerate(ranks.run(2, meet_by, how, use_torchcomms, str(tmp_path))):
        assert seen[:4] == [rank, 2, 2.0, "cpu:gloo" if how == "method" else "gloo"]
        assert "cpu:gloo" in seen[4]


def use_groups() -> list[float]:
    dist.init_process_group("ringfold", use_torchcomms=True, timeout=timedelta(seconds=30))
    world = dist.get_comm()
    assert world.get_backend() == "ringfold" and world.get_size() == 4
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3], backend="gloo")]
    mine = pairs[dist.get_rank() // 2]
    comm = dist.get_comm(mine)
    assert comm is not world and comm.get_rank() == dist.get_rank() % 2
    assert comm.get_backend() == ("ringfold" if dist.get_rank() < 2 else "gloo") == dist.get_backend(mine)
    sums = [_sum(), _sum(mine)]
    assert dist.get_global_rank(mine, 1) == dist.get_rank() // 2 * 2 + 1
    # Torch's own functions make torch's own groups.
    theirs = plain.new_group([0, 1, 2, 3], backend="gloo")
    assert not dist.uses_torchcomms(theirs)
    tensor = torch.ones(1)
    plain.all_reduce(tensor, group=theirs)
    dist.all_reduce(tensor, group=theirs)
    sums.append(tensor.item())
    dist.destroy_process_group(mine)
    with pytest.raises((ValueError, RuntimeError)):
        dist.all_reduce(tensor, group=mine)
    assert comm._is_final and not world._is_final
    sums.append(_sum())
    # Only its ranks call this.
    if dist.get_rank() >= 2:
        assert _sum(dist.new_group([2, 3], use_local_synchronization=True)) == 2.0
    dist.barrier()
    dist.destroy_process_group()
    assert world._is_final
    return sums


def test_groups_have_communicators_of_their_own(ranks: Ranks) -> None:
    assert ranks.run(4, use_groups) == [[4.0, 2.0, 16.0, 4.0]] * 4


def split_groups() -> list[float]:
    dist.init_process_group("gloo", use_torchcomms=True)
    half = dist.split_group(None, [[3, 1], [0, 2]])
    assert dist.uses_torchcomms(half) and dist.get_backend(half) == "gloo"
    order = [3, 1] if dist.get_rank() % 2 else [0, 2]
    assert dist.get_process_group_ranks(half) == order and order[dist.get_rank(half)] == dist.get_rank()
    tensor = torch.tensor([float(dist.get_rank())])
    dist.broadcast(tensor, order[0], group=half)
    with pytest.raises(RuntimeError, match="distwrap"):
        plain.all_reduce(tensor, group=half)
    with pytest.raises(RuntimeError, match="'nccl'.*'gloo'"):
        dist.split_group(half, [[1]], backend="nccl")
    one = dist.split_group(half, [[1]], backend="gloo")
    assert (one is dist.GroupMember.NON_GROUP_MEMBER) == (dist.get_rank() in (0, 3))
    sums = [tensor.item(), _sum(half)]
    dist.barrier()
    dist.destroy_process_group()
    return sums


@pytest.mark.skipif(VERSION < (2, 15), reason="torch splits no groups on CPUs before 2.15")
def test_splits_use_torchcomms_as_their_parents_do(ranks: Ranks) -> None:
    assert ranks.run(4, split_groups) == [[0.0, 2.0], [3.0, 2.0]] * 2


def pass_calls_on() -> list[list[list[float]]]:
    """With torch's own gloo."""
    with pytest.raises(ValueError, match="backend must be specified"):
        dist.init_process_group(None)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    results = []
    for is_async in (False, True):
        outputs = [torch.zeros(r + 1) for r in range(world)]
        work = dist.all_gather(outputs, torch.full((rank + 1,), float(rank)), async_op=is_async)
        if is_async:
            work.wait()
        results.append([output.tolist() for output in outputs])
    if VERSION >= (2, 15):
        half = dist.split_group(None, [list(range(world - 1)), [world - 1]], backend="gloo")
        assert not dist.uses_torchcomms(half) and dist.get_world_size(half) in (world - 1, 1)
    dist.destroy_process_group()
    return results


def test_without_torchcomms_sizes_may_differ_and_groups_be_split(ranks: Ranks) -> None:
    assert ranks.run(3, pass_calls_on) == [[[[0.0], [1.0] * 2, [2.0] * 3]] * 2] * 3


def call_torch_itself() -> None:
    dist.init_process_group("gloo", use_torchcomms=True)
    tensor, parts = torch.ones(2), [torch.ones(2), torch.ones(2)]
    calls: list[Any] = [
        lambda: plain.all_reduce(tensor),
        lambda: plain.all_reduce(tensor, async_op=True),
        lambda: plain.broadcast(tensor, 0),
        lambda: plain.all_gather(parts, tensor),
        lambda: plain.all_to_all(parts, parts),
        lambda: plain.isend(tensor, 1 - dist.get_rank()),
        plain.barrier,
        lambda: plain.all_gather_object([None, None], 1),
        lambda: plain.batch_isend_irecv([plain.P2POp(plain.isend, tensor, 1 - dist.get_rank())]),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"torchcomms\.distwrap"):
            call()
    plain.distributed_c10d._world.pg_coalesce_state.clear()
    # One thread's permission is not another's.
    refused: list[str] = []

    def other() -> None:
        try:
            plain.all_reduce(torch.ones(1))
        except RuntimeError as error:
            refused.append(str(error))

    work = dist.all_reduce(tensor, async_op=True)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    _done(work)
    assert refused and "distwrap" in refused[0] and tensor.tolist() == [2.0, 2.0]
    assert _sum() == 2.0
    dist.destroy_process_group()


def test_operations_of_torch_itself_are_refused(ranks: Ranks) -> None:
    ranks.run(2, call_torch_itself)


def begin_and_end_often(folder: str) -> float:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    total = 0.0
    for turn in range(4):
        store = dist.FileStore(f"{folder}/store{turn}", world)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world, use_torchcomms=turn % 2 == 0
        )
        total += _sum()
        dist.barrier()
        dist.destroy_process_group()
    return total


def test_both_kinds_may_follow_each_other_in_one_process(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, begin_and_end_often, str(tmp_path)) == [8.0, 8.0]


def fail_together() -> str:
    dist.init_process_group("gloo", use_torchcomms=True, timeout=timedelta(seconds=1))
    try:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return str(error)
    finally:
        dist.destroy_process_group()
    return ""


def test_a_timeout_names_the_missing_rank(ranks: Ranks) -> None:
    assert "rank 1" in ranks.run(2, fail_together)[0]


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_torchcomms", MODES)
def test_a_backend_is_needed(use_torchcomms: bool) -> None:
    with pytest.raises(TypeError, match="backend"):
        dist.init_process_group(use_torchcomms=use_torchcomms)  # type: ignore[call-arg]
    nothing: Any = None
    with pytest.raises(ValueError, match="invalid backend"):
        dist.init_process_group(nothing, use_torchcomms=use_torchcomms)
    assert not dist.is_initialized()


def test_backends_of_devices_are_found() -> None:
    assert backends_by_device("cpu:gloo,cuda:NCCL") == {"cpu": "gloo", "cuda": "nccl"}
    assert backends_by_device("cuda:ncclx , cpu:ringfold") == {"cuda": "ncclx", "cpu": "ringfold"}
    assert backends_by_device("ncclx") == {"cuda": "ncclx"}
    assert backends_by_device("gloo")["cpu"] == "gloo"
    for wrong in ("", "cpu:", ":gloo", "cpu:gloo,cpu:ringfold", "cpu:gloo,nccl"):
        with pytest.raises(ValueError, match="invalid backend"):
            backends_by_device(wrong)
    with pytest.raises(ModuleNotFoundError, match="failed to find backend 'nixda'"):
        backends_by_device("cpu:nixda")


def test_what_cannot_be_is_said_before_anything_is_made() -> None:
    with pytest.raises(RuntimeError, match="enable_reconfigure"):
        dist.init_process_group("gloo", use_torchcomms=True, enable_reconfigure=True)
    with pytest.raises(ModuleNotFoundError, match="nixda"):
        dist.init_process_group("nixda", use_torchcomms=True)
    assert not dist.is_initialized()


def be_alone(backend: str) -> list[Any]:
    store = dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=1, use_torchcomms=True)
    try:
        group: Any = dist.group.WORLD
        kinds = sorted(device.type for device in group._device_types)
        comms = [dist.get_comm(device=kind) for kind in kinds]
        assert len({id(comm) for comm in comms}) == len(comms)
        assert _sum() == 1.0
        config: str = dist.get_backend_config()
        return [
            kinds,
            [comm.get_backend() for comm in comms],
            [comm.get_device().type for comm in comms],
            config,
        ]
    finally:
        dist.destroy_process_group()


@mixes_devices
def test_each_type_of_device_has_a_communicator(ranks: Ranks) -> None:
    (seen,) = ranks.run(1, be_alone, "cpu:gloo,cuda:nccl")
    assert seen == [["cpu", "cuda"], ["gloo", "nccl"], ["cpu", "cuda"], "cpu:gloo,cuda:nccl"]


def test_backends_in_python_work(ranks: Ranks) -> None:
    assert ranks.run(1, use_a_python_backend) == [["all_reduce", "finalize"]]


def use_a_python_backend() -> list[str]:
    calls: list[str] = []

    class Counting(torchcomms.TorchCommBackend):
        def get_rank(self) -> int:
            return 0

        def get_size(self) -> int:
            return 1

        def all_reduce(self, tensor: torch.Tensor, op: torchcomms.ReduceOp, async_op: bool) -> None:
            calls.append("all_reduce")

        def finalize(self) -> None:
            calls.append("finalize")

    torchcomms.register_backend("counting", Counting)
    be_alone("cpu:counting")
    return calls
