"""Replicas that differ in what decides their updates: the difference is found and named, or made good."""

from __future__ import annotations

import re
from typing import Any

import pytest
from peers import DEADLINE
from test_elastic_training import PREAMBLE

torch = pytest.importorskip("torch")

REPLICA = (
    PREAMBLE
    + """
import itertools
master, name, kind, on_divergence, replicas = sys.argv[1:6]
policy = elastic.Policy(replicas_min=int(replicas), on_divergence=on_divergence, check_every=4)
run = elastic.join(master, name=name, policy=policy)
torch.manual_seed(sum(name.encode()))
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(), torch.nn.Linear(16, 2))
model = DDP(model, process_group=run.replica_group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, scheduler=scheduler, sampler=sampler, rng=True)
is_odd = name == "b"
loader = DataLoader(data, batch_size=8, sampler=sampler)
loops = [run.batches(loader, until=until) for until in ((4, 14) if kind == "loops" and is_odd else (14,))]
try:
    for step, (batch, _) in itertools.chain.from_iterable(loops):
        if kind == "rate":
            optimizer.param_groups[0]["lr"] = 0.01 * (1 + is_odd)
        if kind == "numbers" and step == 2 and is_odd:
            torch.rand(1)
        optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        loss.backward()
        if kind == "skipped" and step == 2 and is_odd:
            continue
        optimizer.step()
        if kind == "plateau":
            scheduler.step(loss.detach())
        if kind == "weights" and step == (13 if on_divergence == "raise" else 5) and is_odd:
            with torch.no_grad():
                model.module[2].weight[1, 3] += 1e-7
except RuntimeError as error:
    print(f"stopped with {type(error).__name__}: {error}", flush=True)
print("end", run.step, digest_of(model, optimizer), flush=True)
run.leave()
"""
)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("rate", r"step 0: .*: optimizer.0.lr is (0.01 on a and 0.02 on b|0.02 on b and 0.01 on a)"),
        ("plateau", r"step 1: .*: scheduler.best is [\d.]+ on . and [\d.]+ on ."),
        ("numbers", "step 3: .*: rng.rng is hash .* on . and hash .* on ."),
        # After the last step, as nothing else would find it.
        ("weights", r"step 14: .*: model.2.weight is hash \w+ on . and hash \w+ on .$"),
        ("skipped", r"step [23]: .*: step is . on . and . on ."),
    ],
)
def test_a_difference_is_an_error_that_names_it(
    kind: str, text: str, master: str, spawn_with_torch: Any
) -> None:
    replicas = [spawn_with_torch(REPLICA, master, name, kind, "raise", 2) for name in "ab"]
    for each in replicas:
        each.wait_for("end ", DEADLINE)
        line = each.wait_for("stopped with DivergenceError", DEADLINE)
        assert re.search(text, line), line


def test_replicas_that_differ_get_the_state_of_the_most(master: str, spawn_with_torch: Any) -> None:
    replicas = [spawn_with_torch(REPLICA, master, name, "weights", "resync", 3) for name in "abc"]
    assert len({each.wait_for("end 14 ", DEADLINE) for each in replicas}) == 1
    for each in replicas:
        assert "step 8: the replicas have diverged: model.2.weight is hash" in each.output


def test_a_difference_may_be_a_warning(master: str, spawn_with_torch: Any) -> None:
    replicas = [spawn_with_torch(REPLICA, master, name, "weights", "warn", 2) for name in "ab"]
    assert len({each.wait_for("end 14 ", DEADLINE) for each in replicas}) == 2
    assert replicas[0].output.count("the replicas have diverged") == 1


def test_equal_replicas_are_not_disturbed(master: str, spawn_with_torch: Any) -> None:
    # The last batches of an epoch are smaller, and dropout draws fewer numbers.
    replicas = [spawn_with_torch(REPLICA, master, name, "nothing", "raise", 3) for name in "abc"]
    ends = {each.wait_for("end ", DEADLINE) for each in replicas}
    assert len(ends) == 1 and next(iter(ends)).startswith("end 14 "), replicas[0].output


def test_loops_may_end_at_different_steps(master: str, spawn_with_torch: Any) -> None:
    # Nothing is compared after step 4, where only one of them ends a loop.
    replicas = [spawn_with_torch(REPLICA, master, name, "loops", "raise", 2) for name in "ab"]
    assert len({each.wait_for("end 14 ", DEADLINE) for each in replicas}) == 1


STATIC = """
import os, sys
import torch
import torch.distributed as dist
import ringfold.torch

dist.init_process_group("gloo")
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
ringfold.torch.check_replicas(model, optimizer)
if dist.get_rank() == 1:
    optimizer.param_groups[0]["lr"] = 0.5
    model[1].bias.data.neg_()
try:
    ringfold.torch.check_replicas(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 5)))
    ringfold.torch.check_replicas(model, optimizer)
except ringfold.torch.DivergenceError as error:
    print("found", error, flush=True)
dist.destroy_process_group()
"""


def test_ranks_of_static_ddp_are_compared(spawn_with_torch: Any) -> None:
    from forks import torchrun_environments

    ranks = [spawn_with_torch(STATIC, env=env) for env in torchrun_environments(2)]
    for each in ranks:
        line = each.wait_for("found ", DEADLINE)
        assert "optimizer.0.lr is 0.01 on rank 0 and 0.5 on rank 1; model.1.bias is hash" in line
        each.succeed(DEADLINE)


def test_every_changed_bit_changes_the_hash() -> None:
    from ringfold.torch.divergence import content_of

    chance = torch.Generator().manual_seed(1)
    for shape, dtype in (
        ((3, 5), torch.float32),
        ((7,), torch.bfloat16),
        ((), torch.float64),
        ((1 << 20, 3), torch.int8),
    ):
        tensor = torch.zeros(shape, dtype=dtype)
        seen = {int(content_of(tensor))}
        flat = tensor.view(-1).view(torch.uint8)
        for number, place in enumerate(torch.randint(flat.numel(), (8,), generator=chance).tolist()):
            flat[place] ^= 1 << number
            seen.add(int(content_of(tensor)))
            flat[place] ^= 1 << number
        assert len(seen) == 9
