"""``torch.compile`` in elastic runs: compiled DDP and FSDP2 models give what the same models give without it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from forks import torchrun_environments
from peers import DEADLINE
from variants import is_long

pytest.importorskip("torch")

REPLICA = """
import json, sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ringfold.torch.elastic as elastic

master, name, kind, compiler = sys.argv[1:5]
torch.set_num_threads(1)
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=2))
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
if kind == "ddp":
    model = DDP(model, process_group=run.replica_group)
else:
    mesh = init_device_mesh("cpu", (run.replica.ranks,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
if compiler != "none":
    model = torch.compile(model, backend=compiler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, sampler=sampler)
for step, (batch,) in run.batches(DataLoader(data, batch_size=4, sampler=sampler), until=6):
    optimizer.zero_grad()
    (model(batch) ** 2).mean().backward()
    optimizer.step()
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
print("end", json.dumps([value for tensor in whole for value in tensor.flatten().tolist()]), flush=True)
run.leave()
"""

COMPILER = "inductor" if is_long() else "aot_eager"


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_compiled_models(kind: str, master: str, spawn_with_torch: Any) -> None:
    def trained(compiler: str) -> list[list[float]]:
        environments = torchrun_environments(2) if kind == "fsdp" else [{}]
        replicas = [
            spawn_with_torch(REPLICA, master, name, kind, compiler, env=env)
            for name in "ab"
            for env in (environments if name == "a" or kind == "ddp" else torchrun_environments(2))
        ]
        ends = [each.wait_for("end ", DEADLINE).removeprefix("end ") for each in replicas]
        for each in replicas:
            assert each.wait(DEADLINE) == 0
        return [json.loads(end) for end in ends]

    plain, compiled = trained("none"), trained(COMPILER)
    assert all(each == plain[0] for each in plain) and all(each == compiled[0] for each in compiled)
    assert compiled[0] == pytest.approx(plain[0], rel=1e-5, abs=1e-6)
