"""Replicas that are killed or stopped at every point of a step."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from peers import DEADLINE
from variants import is_long

pytest.importorskip("torch")

REPLICA = """
import hashlib, logging, os, sys

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ringfold.torch.elastic as elastic

master, name, until = sys.argv[1], sys.argv[2], int(sys.argv[3])
point, fault, at, replicas_min = sys.argv[4], int(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7])
torch.set_num_threads(1)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
torch.manual_seed(sum(name.encode()))
steps = 0


def fault_at(here):
    if here == point and steps == at:
        print("fault at", here, "step", run.step, flush=True)
        os.kill(os.getpid(), fault)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        fault_at("in the optimizer")
        result = super().step(closure)
        fault_at("after the optimizer")
        return result


run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=replicas_min))
# Each layer is more than a bucket.
model = torch.nn.Sequential(*(torch.nn.Linear(520, 520) for _ in range(3)))
model[1].weight.register_hook(lambda gradient: fault_at("in backward"))
model = DDP(model, process_group=run.replica_group, bucket_cap_mb=1)
optimizer = Optimizer(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(120, 520, generator=torch.Generator().manual_seed(1)))
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, sampler=sampler)
for step, (batch,) in run.batches(DataLoader(data, batch_size=2, sampler=sampler), until=until):
    print(f"step {step} of {run.world_size}", flush=True)
    optimizer.zero_grad()
    loss = (model(batch) ** 2).mean()
    fault_at("before backward")
    loss.backward()
    fault_at("before the optimizer")
    optimizer.step()
    steps += 1
digest = hashlib.sha256()
for tensor in (*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())):
    digest.update(tensor.detach().numpy().tobytes())
print("end", run.step, sampler.epoch, digest.hexdigest(), flush=True)
run.leave()
"""

POINTS = ("before backward", "in backward", "before the optimizer", "in the optimizer", "after the optimizer")


def run_with_victims(spawn: Any, master: str, fault: int, points: tuple[str, ...]) -> None:
    """Two replicas are well; the others end one after the other, each at its point, and one joins meanwhile."""
    victims_first = 2 + len(points)
    until = 10 + 6 * len(points)

    def replica(name: str, point: str = "nowhere", at: int = 0) -> Any:
        return spawn(REPLICA, master, name, until, point, fault, at, victims_first)

    well = [replica("a"), replica("b")]
    victims = [replica(f"v{number}", point, 5 + 6 * number) for number, point in enumerate(points)]
    well[0].wait_for("step 3 ", DEADLINE)
    # The run goes on below the minimum only with newcomers, so that each step has as many replicas.
    well += [replica(f"n{number}") for number, _ in enumerate(points)]
    for victim in victims:
        victim.wait_for("fault at ", DEADLINE)
    ends = {each.wait_for("end ", DEADLINE) for each in well}
    assert len(ends) == 1 and next(iter(ends)).startswith(f"end {until} ")


def test_replicas_that_are_killed_at_every_point(master: str, spawn_with_torch: Any) -> None:
    run_with_victims(spawn_with_torch, master, signal.SIGKILL, POINTS)


def test_replicas_that_stop_at_every_point(master: str, spawn_with_torch: Any) -> None:
    points = POINTS if is_long() else POINTS[1:2]
    run_with_victims(spawn_with_torch, master, signal.SIGSTOP, points)


def test_newcomers_that_are_killed_while_they_get_the_state(master: str, spawn_with_torch: Any) -> None:
    def replica(name: str, point: str = "nowhere") -> Any:
        return spawn_with_torch(REPLICA, master, name, 40, point, signal.SIGKILL, 0, 2)

    well = [replica("a"), replica("b")]
    well[0].wait_for("step 3 ", DEADLINE)
    # The first step of a newcomer runs beside the transfer of its state.
    newcomers = [
        replica(point, point) for point in ("before backward", "before the optimizer", "in the optimizer")
    ]
    for newcomer in newcomers:
        newcomer.wait_for("fault at ", DEADLINE)
    ends = {each.wait_for("end ", DEADLINE) for each in well}
    assert len(ends) == 1 and next(iter(ends)).startswith("end 40 ")


def test_a_holder_that_is_killed_while_a_newcomer_gets_the_state(master: str, spawn_with_torch: Any) -> None:
    def replica(name: str, point: str = "nowhere", at: int = 0) -> Any:
        return spawn_with_torch(REPLICA, master, name, 30, point, signal.SIGKILL, at, 3)

    replicas = [replica("a"), replica("b")]
    holders = [replica("h", "before backward", 6)]
    replicas[0].wait_for("step 5 ", DEADLINE)
    # The run waits for it at the next step, in which the holder dies.
    replicas.append(replica("n"))
    holders[0].wait_for("fault at ", DEADLINE)
    ends = {each.wait_for("end ", DEADLINE) for each in replicas}
    assert len(ends) == 1
