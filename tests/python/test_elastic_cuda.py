"""Elastic runs with models on a GPU; on a machine that has one."""

from __future__ import annotations

from typing import Any

import pccl
import pytest
from forks import torchrun_environments
from peers import DEADLINE

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    not (pccl.cuda.is_available() and torch.cuda.is_available()), reason="needs a CUDA device"
)

RANK = """
import hashlib, logging, os, sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ringfold.torch
import ringfold.torch.elastic as elastic

master, name, kind, dies_at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
if kind == "fsdp":
    # NCCL needs a device for each rank.
    dist.init_process_group("ringfold")
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=2))
torch.manual_seed(sum(name.encode()))
model = torch.nn.Sequential(torch.nn.Linear(64, 600), torch.nn.BatchNorm1d(600), torch.nn.Linear(600, 600)).cuda()
if kind == "fsdp":
    mesh = init_device_mesh("cuda", (run.replica.ranks,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
elif kind == "ddp":
    model = DDP(model, process_group=run.replica_group)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(400, 64, generator=torch.Generator().manual_seed(1)))
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, sampler=sampler, rng=True)
for step, (batch,) in run.batches(DataLoader(data, batch_size=8, sampler=sampler), until=60):
    print(f"step {step} of {run.world_size}", flush=True)
    optimizer.zero_grad()
    (model(batch.cuda()) ** 2).mean().backward()
    if step == dies_at and run.replica.rank == run.replica.ranks - 1:
        os.kill(os.getpid(), 9)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
digest = hashlib.sha256()
for tensor in (*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())):
    shard = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    digest.update(shard.detach().cpu().numpy().tobytes())
print("end", run.step, run.replica.rank, digest.hexdigest(), flush=True)
run.leave()
"""


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 1), ("plain", 1), ("fsdp", 2)])
def test_replicas_on_a_gpu_hold_the_same_bits(
    kind: str, ranks: int, master: str, spawn_with_torch: Any
) -> None:
    def replica(name: str, dies_at: int = -1) -> list[Any]:
        environments = torchrun_environments(ranks) if ranks > 1 else [{}]
        return [spawn_with_torch(RANK, master, name, kind, dies_at, env=env) for env in environments]

    first = [replica("a"), replica("b", 20)]
    first[0][0].wait_for("step 5 ", DEADLINE)
    newcomer = replica("c")
    for one, other in zip(first[0], newcomer, strict=True):
        end = one.wait_for("end 60 ", DEADLINE)
        assert end == other.wait_for("end ", DEADLINE)
