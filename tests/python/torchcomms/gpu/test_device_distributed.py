"""torch.distributed on devices with backend ringfold: how it is made, and what torch builds on it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import ringfold.torch  # noqa: F401
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import Ranks
from test_device_collectives import DEADLINE, TIMEOUT, limit
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

KIND = "cuda"
COUNTS = (10, 300_001)


def begin(how: str = "with a device") -> torch.device:
    limit()
    device = torch.device(KIND, 0)
    if KIND == "cuda":
        torch.cuda.set_device(device)
    settings: dict[str, Any] = {"timeout": timedelta(seconds=TIMEOUT)}
    backend = "cpu:ringfold,cuda:ringfold" if how == "both kinds" else "ringfold"
    if how == "with a device":
        settings["device_id"] = device
    dist.init_process_group(backend, **settings)
    return device


def made(how: str) -> None:
    device = begin(how)
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    for count in COUNTS:
        tensor = torch.full((count,), rank + 1.0, device=device)
        dist.all_reduce(tensor)
        assert float(tensor[-1]) == total
        parts = [torch.zeros(count, device=device) for _ in range(size)]
        dist.all_gather(parts, torch.full((count,), float(rank), device=device))
        assert [float(part[-1]) for part in parts] == [float(other) for other in range(size)]
        part, whole = torch.zeros(count, device=device), torch.ones(count * size, device=device)
        dist.reduce_scatter_tensor(part, whole)
        assert float(part[-1]) == size
        out = torch.zeros(count * size, device=device)
        dist.all_to_all_single(out, torch.full((count * size,), float(rank), device=device))
        assert out[::count].tolist() == [float(other) for other in range(size)]
        dist.broadcast(tensor.fill_(rank), 1)
        assert float(tensor[-1]) == 1.0
    # A tensor of the host, and a group of some ranks.
    host = torch.full((5,), rank + 1.0)
    dist.all_reduce(host)
    assert float(host[0]) == total
    group = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.full((1000,), rank + 1.0, device=device)
        dist.all_reduce(tensor, group=group)
        assert float(tensor[-1]) == 3.0
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("how", ["with a device", "without a device", "both kinds"])
def test_groups_are_made_for_devices(ranks: Ranks, how: str) -> None:
    ranks.run(3, made, how, deadline=DEADLINE)


def model_of(device: torch.device) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).to(
        device
    )


def batch_of(rank: int, device: torch.device) -> torch.Tensor:
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(rank)).to(device)


def train(model: nn.Module, data: torch.Tensor, steps: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()


def trained_alone(size: int, device: torch.device) -> list[torch.Tensor]:
    """The same on one device, with the data of all ranks."""
    model = model_of(device)
    train(model, torch.cat([batch_of(rank, device) for rank in range(size)]))
    return [parameter.detach() for parameter in model.parameters()]


def trained(kind: str) -> None:
    device = begin()
    rank, size = dist.get_rank(), dist.get_world_size()
    model = model_of(device)
    if kind == "DDP":
        train(DistributedDataParallel(model), batch_of(rank, device))
    else:
        mesh = init_device_mesh(KIND, (size,))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, batch_of(rank, device))
    expected = trained_alone(size, device)
    for parameter, other in zip(model.parameters(), expected, strict=True):
        mine = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        torch.testing.assert_close(mine.detach(), other, rtol=1e-4, atol=1e-5)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_training_gives_what_it_gives_alone(ranks: Ranks, kind: str) -> None:
    ranks.run(2, trained, kind, deadline=DEADLINE)


def tensors_of_torch() -> None:
    device = begin()
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(KIND, (size,))
    whole = torch.arange(35.0, device=device).reshape(7, 5)
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    for placement in (Shard(1), Replicate(), Shard(0), Replicate(), Shard(1)):
        tensor = tensor.redistribute(mesh, [placement])
        assert tensor.full_tensor().equal(whole)
    partial = DTensor.from_local(whole * (1 + rank), mesh, [Partial()])
    assert partial.full_tensor().equal(whole * size * (size + 1) / 2)
    group = dist.group.WORLD
    assert group is not None
    one = torch.full((1000,), rank + 1.0, device=device)
    total = functional.all_reduce(one, "sum", group)
    assert float(total[0]) == size * (size + 1) / 2
    gathered = functional.all_gather_tensor(one, 0, group)
    assert gathered[::1000].tolist() == [float(other + 1) for other in range(size)]
    scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
    assert float(scattered[0]) == size * (rank + 1)

    def function(data: torch.Tensor) -> torch.Tensor:
        reduced = functional.all_reduce(data * 2, "sum", group)
        return reduced + 1

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        assert float(compiled(one)[0]) == size * (size + 1) + 1
    dist.barrier()
    dist.destroy_process_group()


def test_tensors_and_functions_of_torch(ranks: Ranks) -> None:
    ranks.run(2, tensors_of_torch, deadline=DEADLINE)


def one_is_late() -> float:
    device = begin()
    tensor = torch.ones(1000, device=device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(2.0)
    began = time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    spent = time.monotonic() - began
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    return spent


def test_waiting_for_a_work_does_not_block_the_host(ranks: Ranks) -> None:
    spent = ranks.run(2, one_is_late, deadline=DEADLINE)
    assert spent[0] < 1.0, spent
