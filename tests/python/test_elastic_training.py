"""What an elastic run computes: the same as one process, also from checkpoints and with policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peers import DEADLINE

torch = pytest.importorskip("torch")

PREAMBLE = """
import hashlib, json, logging, math, os, sys, time

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ringfold.torch.elastic as elastic

torch.set_num_threads(1)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
SAMPLES = 90
data = TensorDataset(torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1)), torch.arange(SAMPLES))


def digest_of(model, optimizer):
    digest = hashlib.sha256()
    for tensor in (*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())):
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()
"""

EQUAL = (
    PREAMBLE
    + """
master, name, until, dies_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=4))
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()
model = DDP(model, process_group=run.replica_group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, sampler=sampler)
for step, (batch, numbers) in run.batches(DataLoader(data, batch_size=4, sampler=sampler), until=until):
    optimizer.zero_grad()
    (model(batch.double()) ** 2).mean().backward()
    # A newcomer does not contribute to its first step.
    if run._step.weight > 0:
        print("used", json.dumps([step, numbers.tolist()]), flush=True)
    if step == dies_at:
        os.kill(os.getpid(), 9)
    optimizer.step()
values = [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
print("end", json.dumps(values), flush=True)
run.leave()
"""
)


def test_a_run_whose_world_changes_equals_one_process(master: str, spawn_with_torch: Any) -> None:
    until = 40

    def replica(name: str, dies_at: int = -1) -> Any:
        return spawn_with_torch(EQUAL, master, name, until, dies_at)

    replicas = [replica("a"), replica("b"), replica("c", 11), replica("d", 17)]
    replicas[0].wait_for("used [8,", DEADLINE)
    replicas += [replica("e"), replica("f")]
    ends = {each.wait_for("end ", DEADLINE) for each in (*replicas[:2], *replicas[4:])}
    assert len(ends) == 1
    used: dict[int, list[int]] = {}
    for each in replicas:
        lines = [line.removeprefix("used ") for line in each.output.splitlines() if line.startswith("used ")]
        for step, numbers in dict(map(json.loads, lines)).items():
            used.setdefault(step, []).extend(numbers)
    assert sorted(used) == list(range(until))
    # Weighted by samples, the average of the replicas' gradients is the gradient of all their samples together.
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samples = torch.randn(90, 6, generator=torch.Generator().manual_seed(1)).double()
    for step in range(until):
        optimizer.zero_grad()
        (model(samples[used[step]]) ** 2).mean().backward()
        optimizer.step()
    alone = [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
    assert json.loads(ends.pop().removeprefix("end ")) == pytest.approx(alone, rel=1e-9, abs=1e-12)


MISTAKES = (
    PREAMBLE
    + """
import ringfold.elastic.wait_notice as wait_notice

logging.getLogger().handlers.clear()
wait_notice._WARN_AFTER_SECONDS = 0.3
master, name, kind, replicas = sys.argv[1:5]
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=int(replicas)))
model = torch.nn.Linear(6, 2, bias=kind != "shape")
if kind == "transposed":
    model.weight = torch.nn.Parameter(torch.zeros(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for given in ((model, [optimizer]), ([model], optimizer)):
    try:
        run.replicate(*given)
    except TypeError as error:
        print(f"invalid: {error}", flush=True)
run.replicate(model, optimizer)
try:
    for step, (batch, _) in run.batches(DataLoader(data, batch_size=8), until=100_000):
        loss = (batch @ model.weight if kind == "transposed" else model(batch)).square().mean()
        loss.backward()
        if kind != "accumulates" or step % 2:
            optimizer.step()
        time.sleep(0.05)
        print(f"step {step} of {run.world_size}", flush=True)
except Exception as error:
    print(f"stopped with {type(error).__name__}: {error}", flush=True)
print("end", run.step, flush=True)
run.leave()
"""
)


def test_a_forgotten_step_of_the_optimizer_is_named(master: str, spawn_with_torch: Any) -> None:
    replica = spawn_with_torch(MISTAKES, master, "a", "accumulates", 1)
    line = replica.wait_for("stopped with RuntimeError", DEADLINE)
    assert "step 0 was not committed in 3 attempts: optimizer.step() was not called" in line
    for wrong in (
        "invalid optimizer: must be one torch Optimizer, not a list",
        "invalid model: must be one torch Module",
    ):
        assert wrong in replica.output


def test_a_lone_replica_warns_without_logging_and_one_with_another_model_is_not_admitted(
    master: str, spawn_with_torch: Any
) -> None:
    first = spawn_with_torch(MISTAKES, master, "a", "right", 2)
    first.wait_for("waiting for replicas: 1 of 2 (for", DEADLINE)
    others = [first, spawn_with_torch(MISTAKES, master, "b", "right", 2)]
    first.wait_for("step 3 ", DEADLINE)
    for kind, text in (
        ("shape", "bias is float32[2] on the others and missing on this replica"),
        ("transposed", "weight is float32[2,6] on the others and float32[6,2] on this replica"),
    ):
        wrong = spawn_with_torch(MISTAKES, master, "c", kind, 2)
        assert text in wrong.wait_for("stopped with ValueError: this replica is not admitted", DEADLINE)
    for each in others:
        last = [line for line in each.output.splitlines() if line.startswith("step ")][-1]
        each.wait_for(f"step {int(last.split()[1]) + 5} of 2", DEADLINE)
        assert "a replica with another model or optimizer is not admitted" in each.output


CHECKPOINTS = (
    PREAMBLE
    + """
master, name, until, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=2))
torch.manual_seed(sum(name.encode()))
model = DDP(torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16)), process_group=run.replica_group)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, scheduler=scheduler, sampler=sampler)
print("found", run.restore(folder), run.step, digest_of(model, optimizer), flush=True)
for step, (batch, _) in run.batches(DataLoader(data, batch_size=4, sampler=sampler), until=until):
    optimizer.zero_grad()
    (model(batch) ** 2).mean().backward()
    optimizer.step()
    scheduler.step()
    if step % 10 == 9:
        run.save(folder)
        print(f"saved {step + 1} {digest_of(model, optimizer)}", flush=True)
    print(f"step {step}", flush=True)
print("end", run.step, sampler.epoch, scheduler.get_last_lr(), digest_of(model, optimizer), flush=True)
run.leave()
"""
)


def test_after_a_total_loss_the_newest_checkpoint_wins(
    master: str, spawn_with_torch: Any, tmp_path: Path
) -> None:
    folder, other = tmp_path / "shared", tmp_path / "other"

    def replica(name: str, until: int, directory: Path = folder) -> Any:
        return spawn_with_torch(CHECKPOINTS, master, name, until, directory)

    # Leaves checkpoints of the steps 10, 20 and 30.
    first = [replica("a", 35), replica("b", 35)]
    assert len({each.wait_for("end ", DEADLINE) for each in first}) == 1
    digest = first[0].wait_for("saved 30 ", DEADLINE).split()[-1]
    # Without its metadata a checkpoint is not complete.
    (folder / "step-00000040").mkdir()
    # One replica finds no checkpoint.
    second = [replica("c", 100_000), replica("d", 100_000, other)]
    assert second[0].wait_for("found ", DEADLINE) == f"found True 30 {digest}"
    assert second[1].wait_for("found ", DEADLINE).startswith("found False 0 ")
    for each in second:
        each.wait_for("step 36", DEADLINE)
    for each in second:
        each.kill()
    # All were lost, with a state that nobody has.
    for path in folder.glob("step-0000004*/.metadata"):
        path.unlink()
    third = [replica("e", 60), replica("f", 60, other)]
    assert third[0].wait_for("found ", DEADLINE) == f"found True 30 {digest}"
    assert len({each.wait_for("end ", DEADLINE) for each in third}) == 1
    # Everyone contributes to the first step after a restart.
    assert "fetch the state" in third[1].output


POLICIES = (
    PREAMBLE
    + """
master, name, kind = sys.argv[1], sys.argv[2], sys.argv[3]
policy = {
    "abstain": elastic.Policy(replicas_min=3),
    "batch": elastic.Policy(replicas_min=3, batch=24),
    "skip": elastic.Policy(replicas_min=3, not_finite="skip"),
    "stop": elastic.Policy(replicas_min=3, not_finite="stop"),
    "straggler": elastic.Policy(replicas_min=2, straggler_steps=3, evict_stragglers=True),
}[kind]
run = elastic.join(master, name=name, policy=policy)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
model = DDP(model, process_group=run.replica_group)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
run.replicate(model, optimizer)
loader = DataLoader(TensorDataset(torch.tensor([[{"a": 1.0, "b": 2.0, "c": 6.0}[name]]])), batch_size=1)
try:
    for step, (batch,) in run.batches(loader, until=100_000 if kind == "straggler" else 8):
        optimizer.zero_grad()
        if kind == "straggler":
            time.sleep(0.3 if name == "c" else 0.03)
        if kind == "abstain" and name == "c":
            run.abstain()
        else:
            loss = model(batch).sum()
            (loss * math.nan if kind in ("skip", "stop") and name == "c" and step == 3 else loss).backward()
        optimizer.step()
        print(f"step {step}", flush=True)
except Exception as error:
    print(f"stopped with {type(error).__name__}: {error}", flush=True)
print("end", run.step, run.name, round(model.module.weight.item(), 3), flush=True)
run.leave()
"""
)


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        # Each step subtracts the mean of the gradients, 1, 2 and 6.
        ("abstain", (8, -11.0)),
        # 3 replicas with a weight of 1 each, of 24.
        ("batch", (8, -2.0)),
        ("skip", (8, -20.0)),
        ("stop", (3, -8.0)),
    ],
)
def test_policies(kind: str, end: tuple[int, float], master: str, spawn_with_torch: Any) -> None:
    replicas = {name: spawn_with_torch(POLICIES, master, name, kind) for name in "abc"}
    for name, replica in replicas.items():
        assert replica.wait_for("end ", DEADLINE) == f"end {end[0]} {name} {end[1]}"
        assert ("stopped with FloatingPointError" in replica.output) == (kind == "stop")


def test_stragglers_are_reported_and_leave(master: str, spawn_with_torch: Any) -> None:
    others = [spawn_with_torch(POLICIES, master, name, "straggler") for name in "ab"]
    for each in others:
        each.wait_for("step ", DEADLINE)
    straggler = spawn_with_torch(POLICIES, master, "c", "straggler")
    straggler.wait_for("stopped with RuntimeError: replica c leaves the run", DEADLINE)
    for each in others:
        each.wait_for("replica c is a straggler", DEADLINE)
    last = [line for line in others[0].output.splitlines() if line.startswith("step ")][-1]
    others[0].wait_for(f"step {int(last.split()[1]) + 5}", DEADLINE)
