"""Replicas of one and of two ranks are killed and started at random; all of them always hold the same bits."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from typing import Any

import pytest
from forks import torchrun_environments
from peers import DEADLINE
from variants import is_long, short_of

pytest.importorskip("torch")

RANK = """
import hashlib, sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ringfold.torch.elastic as elastic

master, name, kind = sys.argv[1:4]
torch.set_num_threads(1)
run = elastic.join(master, name=name)
torch.manual_seed(sum(name.encode()))
model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.LayerNorm(300), torch.nn.Linear(300, 5))
if kind == "fsdp":
    mesh = init_device_mesh("cpu", (run.replica.ranks,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
else:
    model = DDP(model, process_group=run.replica_group)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(997, 64, generator=torch.Generator().manual_seed(1)))
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, sampler=sampler)
for step, (batch,) in run.batches(DataLoader(data, batch_size=4, sampler=sampler)):
    if step % 10 == 0:
        digest = hashlib.sha256(repr(sampler.state_dict()).encode())
        for parameter in model.parameters():
            shard = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            digest.update(shard.detach().numpy().tobytes())
        if run._transfer is None:
            print("step", step, run.replica.rank, digest.hexdigest(), flush=True)
    optimizer.zero_grad()
    (model(batch) ** 2).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

REPLICAS = 3


@pytest.mark.timeout(1800 if is_long() else 300)
@pytest.mark.parametrize(("kind", "ranks"), short_of([("ddp", 1)], [("fsdp", 2)]))
def test_replicas_come_and_go(kind: str, ranks: int, master: str, spawn_with_torch: Any) -> None:
    default = "600" if is_long() else "3"
    seconds = float(os.environ.get("RINGFOLD_CHURN_SECONDS", default))
    chance = random.Random(1)
    started = 0

    def replica() -> list[Any]:
        nonlocal started
        started += 1
        environments = torchrun_environments(ranks) if ranks > 1 else [{}]
        return [spawn_with_torch(RANK, master, f"r{started}", kind, env=env) for env in environments]

    living = [replica() for _ in range(REPLICAS)]
    everyone = list(living)
    living[0][0].wait_for("step ", DEADLINE)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.2, 2.0))
        victim = living.pop(chance.randrange(REPLICAS))
        # Two hold the state, so it is not lost if the next victim follows at once.
        for each in living:
            each[0].wait_for("step ", DEADLINE)
        victim[chance.randrange(ranks)].signal(
            chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        )
        everyone.append(replica())
        living.append(everyone[-1])
    for each in living:
        each[0].wait_for("step ", DEADLINE)
    digests: dict[tuple[str, str], set[str]] = {}
    steps = 0
    for each in (rank for ranks_of_replica in everyone for rank in ranks_of_replica):
        for step, rank, digest in re.findall(r"^step (\d+) (\d+) (\w{64})$", each.output, re.MULTILINE):
            digests.setdefault((step, rank), set()).add(digest)
            steps = max(steps, int(step))
    assert all(len(found) == 1 for found in digests.values()), digests
    # Some were started while others computed, and went on with their state.
    assert steps > 20 and any(each[0].output for each in everyone[REPLICAS:])
    print(f"{kind}: {steps} steps, {started - REPLICAS} kills in {seconds:.0f} s")
