"""DiLoCo on an elastic run: replicas that are left or join hold the same bits, and the loss is near that of plain DDP."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from peers import DEADLINE

torch = pytest.importorskip("torch")

import pccl
import ringfold.torch.elastic as elastic
from ringfold.torch.elastic.outer import fragments_of

VARIANTS = {
    "synchronous": {"every": 8},
    "overlapped": {"every": 8, "delay": 3},
    "streaming": {"every": 8, "fragments": 2, "delay": 4},
    "quantised": {"every": 8, "fragments": 4, "delay": 1, "quantised": True},
}

REPLICA = """
import hashlib, json, logging, os, sys, time

import torch
from torch.utils.data import DataLoader, TensorDataset

import pccl
import ringfold.torch.elastic as elastic

master, name, until, settings, dies_at, pause = sys.argv[1:]
settings = json.loads(settings)
quantised = settings.pop("quantised", False)
torch.set_num_threads(1)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
torch.manual_seed(sum(name.encode()))
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=3))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.arange(600), torch.randn(600, 8, generator=torch.Generator().manual_seed(1)))
sampler = elastic.Sampler(data, run)
settings = elastic.DiLoCo(
    **settings, quantization=pccl.QuantizationOptions(pccl.DataType.UINT8) if quantised else None
)
run.replicate(model, optimizer, sampler=sampler, diloco=settings)
for step, (numbers, batch) in run.batches(DataLoader(data, batch_size=4, sampler=sampler), until=int(until)):
    print(f"step {step} of {run.world_size}", flush=True)
    optimizer.zero_grad()
    (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
    if step == int(dies_at):
        os.kill(os.getpid(), 9)
    optimizer.step()
    time.sleep(float(pause))
outer = run._outer
digest = hashlib.sha256()
states = (*outer.module.state_dict().values(), *(v for s in outer.optimizer.state.values() for v in s.values()))
for tensor in (*model.state_dict().values(), *states):
    digest.update(tensor.detach().numpy().tobytes())
print("end", run.step, sampler.epoch, len(sampler), digest.hexdigest(), flush=True)
run.leave()
"""

UNTIL = 64


@pytest.mark.parametrize("variant", VARIANTS)
def test_replicas_that_are_left_or_join_hold_the_same_bits(
    variant: str, master: str, spawn_with_torch: Any
) -> None:
    def replica(name: str, dies_at: int = -1) -> Any:
        settings = json.dumps(VARIANTS[variant])
        return spawn_with_torch(REPLICA, master, name, UNTIL, settings, dies_at, 0.002)

    # Killed within an interval.
    first = [replica("a"), replica("b"), replica("c", 21)]
    first[0].wait_for("step 10 ", DEADLINE)
    newcomer = replica("d")
    ends = {each.wait_for("end ", DEADLINE) for each in (first[0], first[1], newcomer)}
    assert len(ends) == 1 and next(iter(ends)).startswith(f"end {UNTIL} ")
    # The run waited for the newcomer when one was lost.
    assert " of 3" in newcomer.wait_for(f"step {UNTIL - 1} ", DEADLINE)
