"""Stock DDP in an elastic run: replicas are killed and join, and all that are left hold the same bits."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from peers import DEADLINE

pytest.importorskip("torch")

REPLICA = """
import hashlib, logging, os, sys

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ringfold.torch.elastic as elastic

master, name, until, kind, dies_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
torch.set_num_threads(1)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
torch.manual_seed(sum(name.encode()))
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=3))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
if kind == "ddp":
    model = DDP(model, process_group=run.replica_group)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
data = TensorDataset(torch.randn(100, 8, generator=torch.Generator().manual_seed(1)))
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, scheduler=scheduler, sampler=sampler, rng=True)
for step, (batch,) in run.batches(DataLoader(data, batch_size=4, sampler=sampler), until=until):
    print(f"step {step} of {run.world_size}", flush=True)
    optimizer.zero_grad()
    (model(batch) ** 2).mean().backward()
    if step == dies_at:
        os.kill(os.getpid(), 9)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
digest = hashlib.sha256()
for tensor in (*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())):
    digest.update(tensor.detach().numpy().tobytes())
print("end", run.step, sampler.epoch, scheduler.get_last_lr(), digest.hexdigest(), flush=True)
run.leave()
"""

UNTIL = 60


@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_replicas_that_are_left_or_join_hold_the_same_bits(
    kind: str, master: str, spawn_with_torch: Any
) -> None:
    def replica(name: str, dies_at: int = -1) -> Any:
        return spawn_with_torch(REPLICA, master, name, UNTIL, kind, dies_at)

    first = [replica("a"), replica("b"), replica("c", 20)]
    first[0].wait_for("step 10 ", DEADLINE)
    newcomer = replica("d")
    ends = {each.wait_for("end ", DEADLINE) for each in (first[0], first[1], newcomer)}
    assert len(ends) == 1 and next(iter(ends)).startswith(f"end {UNTIL} ")
    # The run waited for the newcomer when one was lost, and all steps had three replicas.
    assert " of 3" in newcomer.wait_for(f"step {UNTIL - 1} ", DEADLINE)


def test_a_preempted_replica_leaves(master: str, spawn_with_torch: Any) -> None:
    replicas = [spawn_with_torch(REPLICA, master, name, 100_000, "ddp", -1) for name in "abc"]
    for each in replicas:
        each.wait_for("step 3 ", DEADLINE)
    replicas[2].signal(signal.SIGTERM)
    replicas[2].wait_for("SIGTERM: leaving the run", DEADLINE)
    replicas[2].wait_for("end ", DEADLINE)
    # The others wait for a third one now, or soon, and can be preempted, too.
    for each in replicas[:2]:
        each.signal(signal.SIGTERM)
    for each in replicas[:2]:
        each.wait_for("end ", DEADLINE)


def test_replicas_take_the_options_of_reductions(master: str, spawn_with_torch: Any) -> None:
    given = 'policy=elastic.Policy(replicas_min=2), reproducible=True, integrity="all"'
    program = REPLICA.replace("policy=elastic.Policy(replicas_min=3)", given)
    replicas = [spawn_with_torch(program, master, name, 5, "ddp", -1) for name in "ab"]
    ends = {each.wait_for("end ", DEADLINE) for each in replicas}
    assert len(ends) == 1 and next(iter(ends)).startswith("end 5 ")
