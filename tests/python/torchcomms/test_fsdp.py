"""FSDP2, DTensor and distributed checkpoints over ringfold give what they give over gloo, bit for bit with two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from training import bits, process_group, train

Outcome = tuple[list[float], list[int]]


class Blocks(nn.Module):
    """Layers that are sharded one by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 3)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            data = torch.tanh(block(data)) + data
        out: torch.Tensor = self.last(data)
        return out


def _sharded(**settings: Any) -> Blocks:
    model = Blocks()
    # Where there is a GPU, it would be taken if nothing was said.
    settings.setdefault("mesh", init_device_mesh("cpu", (dist.get_world_size(),)))
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


def _whole(model: nn.Module) -> list[torch.Tensor]:
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]


def _train_sharded(**settings: Any) -> Outcome:
    model = _sharded(**settings)
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    return losses, bits(_whole(model))


def _train_in_parallel() -> Outcome:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return losses, bits(_whole(model))


def _redistribute() -> Outcome:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(35.0).reshape(7, 5)
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    seen = []
    for placement in (Shard(1), Replicate(), Shard(0), Replicate(), Shard(1)):
        tensor = tensor.redistribute(mesh, [placement])
        seen.append(tensor.full_tensor())
        assert seen[-1].equal(whole)
    partial = DTensor.from_local(whole * (1 + dist.get_rank()), mesh, [Partial()])
    seen += [partial.redistribute(mesh, [Shard(0)]).full_tensor(), partial.full_tensor()]
    seen.append((tensor @ tensor.t()).full_tensor())
    return [], bits(seen)


def _save_and_load(folder: Path) -> Outcome:
    model = _sharded()
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), count=2)
    kept = [tensor.clone() for tensor in _whole(model)]
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=str(folder))
    fresh = _sharded()
    state = {"model": fresh.state_dict()}
    checkpoint.load(state, checkpoint_id=str(folder))
    fresh.load_state_dict(state["model"])
    assert all(a.equal(b) for a, b in zip(kept, _whole(fresh), strict=True))
    return losses, bits(kept)


def shard_in_every_way(folder: Path, backends: list[str]) -> list[dict[str, Outcome]]:
    outcomes = []
    for backend in backends:
        with process_group(backend, folder):
            half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            outcomes.append(
                {
                    "plainly": _train_sharded(),
                    "kept after forward": _train_sharded(reshard_after_forward=False),
                    "mixed": _train_sharded(mp_policy=half),
                    "in parallel": _train_in_parallel(),
                    "redistributed": _redistribute(),
                    "saved": _save_and_load(folder / f"checkpoint-{backend}"),
                }
            )
    return outcomes


def test_fsdp_and_dtensor_give_the_same_bits_as_gloo(ranks: Ranks, tmp_path: Path) -> None:
    outcomes = ranks.run(2, shard_in_every_way, tmp_path, ["gloo", "ringfold"], deadline=180.0)
    for rank, (by_gloo, by_us) in enumerate(outcomes):
        for way, expected in by_gloo.items():
            assert by_us[way] == expected, f"rank {rank}, {way}"


def shard_both_ways(folder: Path) -> list[list[float]]:
    """Sharded in pairs, and the same in both pairs."""
    losses = []
    for backend in ("gloo", "ringfold"):
        with process_group(backend, folder):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            model = _sharded(mesh=mesh)
            losses.append(train(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    return losses


def test_a_mesh_of_two_dimensions_trains_as_with_gloo_within_rounding(ranks: Ranks, tmp_path: Path) -> None:
    for by_gloo, by_us in ranks.run(4, shard_both_ways, tmp_path, deadline=180.0):
        # Four ranks are added up in an order that is not gloo's.
        torch.testing.assert_close(torch.tensor(by_us), torch.tensor(by_gloo), rtol=1e-5, atol=1e-6)
