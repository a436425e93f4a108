"""Replicas of several ranks in an elastic run: FSDP2, DDP and tensor parallel inside the replica."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from forks import torchrun_environments
from peers import DEADLINE

pytest.importorskip("torch")

RANK = """
import hashlib, logging, os, sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ringfold.torch.elastic as elastic

master, name, until, kind, dies_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
torch.set_num_threads(1)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=2))
torch.manual_seed(sum(name.encode()))
# The sizes do not divide evenly, and the last shards are smaller.
model = torch.nn.Sequential(torch.nn.Linear(8, 34), torch.nn.LayerNorm(34), torch.nn.Linear(34, 5))
mesh = init_device_mesh("cpu", (run.replica.ranks,))
part = None
diloco = elastic.DiLoCo(every=8, fragments=2, delay=2) if kind == "diloco" else None
if kind in ("fsdp", "diloco"):
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
elif kind == "ddp":
    model = DDP(model, process_group=run.replica_group)
elif kind == "tensor":
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 34), torch.nn.Linear(34, 5))
    for parameter in model.parameters():
        torch.distributed.broadcast(parameter.data, 0)
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "2": RowwiseParallel()})
    part = (0, 1)
# Torch does not mix distributed and other tensors in one operation.
optimizer = torch.optim.AdamW(model.parameters(), foreach=None if kind != "tensor" else False)
data = TensorDataset(torch.randn(101, 8, generator=torch.Generator().manual_seed(1)))
sampler = elastic.Sampler(data, run, part=part)
run.replicate(model, optimizer, sampler=sampler, diloco=diloco)
is_last = run.replica.rank == run.replica.ranks - 1
for step, (batch,) in run.batches(DataLoader(data, batch_size=4, sampler=sampler), until=until):
    print(f"step {step} of {run.world_size}", flush=True)
    optimizer.zero_grad()
    (model(batch) ** 2).mean().backward()
    if step == dies_at and is_last:
        os.kill(os.getpid(), 9)
    if kind != "tensor":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
digest = hashlib.sha256()
# With DiLoCo each replica has its own optimiser.
moments = [value for state in optimizer.state.values() for value in state.values()] if diloco is None else []
for tensor in (*model.state_dict().values(), *moments):
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    digest.update(whole.detach().numpy().tobytes())
print("end", run.step, sampler.epoch, digest.hexdigest(), flush=True)
run.leave()
"""

RANKS = 2
EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "elastic_fsdp.py"


class Replica:
    """The processes of a replica."""

    def __init__(self, spawn: Any, *arguments: object) -> None:
        self.ranks = [spawn(RANK, *arguments, env=env) for env in torchrun_environments(RANKS)]

    def wait_for(self, text: str) -> set[str]:
        """Waits until all ranks have printed it. Their lines."""
        return {rank.wait_for(text, DEADLINE) for rank in self.ranks}


@pytest.mark.parametrize("kind", ["fsdp", "ddp", "tensor", "diloco"])
def test_a_replica_that_loses_a_rank_leaves_as_a_whole(kind: str, master: str, spawn_with_torch: Any) -> None:
    def replica(name: str, dies_at: int = -1) -> Replica:
        return Replica(spawn_with_torch, master, name, 40, kind, dies_at)

    first = [replica("a"), replica("b", 15)]
    first[0].wait_for("step 5 ")
    newcomer = replica("c")
    ends = first[0].wait_for("end ") | newcomer.wait_for("end ")
    assert len(ends) == 1 and next(iter(ends)).startswith("end 40 ")
    # The other rank of the replica that was killed stops with an error.
    assert first[1].ranks[1].wait(DEADLINE) == -signal.SIGKILL
    assert first[1].ranks[0].wait(DEADLINE) == 1


def test_the_example_continues_from_a_checkpoint_of_replicas_with_other_ranks(
    master: str, spawn_with_torch: Any, tmp_path: Path
) -> None:
    def replica(ranks: int, replicas: int, steps: int) -> list[Any]:
        options = ["--replicas", replicas, "--steps", steps, "--checkpoints", tmp_path / "steps"]
        environments = torchrun_environments(ranks)
        return [
            spawn_with_torch(
                EXAMPLE, *options, env={**env, "RINGFOLD_MASTERS": master, "CUDA_VISIBLE_DEVICES": ""}
            )
            for env in environments
        ]

    first = [*replica(2, 2, 25), *replica(2, 2, 25)]
    ends = {rank.wait_for("end: ", DEADLINE) for rank in first}
    assert len(ends) == 1 and next(iter(ends)).startswith("end: step 25, ")
    for rank in first:
        assert rank.wait(DEADLINE) == 0
    # From two replicas of two ranks to one of three, which begins where the checkpoint was written.
    second = replica(3, 1, 30)
    ends = {rank.wait_for("end: ", DEADLINE) for rank in second}
    assert len(ends) == 1 and next(iter(ends)).startswith("end: step 30, ")
    assert "step 20: loss" in second[0].output and "step 19: " not in second[0].output
