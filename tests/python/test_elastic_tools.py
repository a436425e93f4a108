"""Elastic runs under the tools that people start and write their programs with. A replica is killed, another one joins, and all
end with the same bits."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tools
from child import Child, Spawn
from peers import DEADLINE
from variants import is_long

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
STEPS = 150
TRAINERS = """
import logging, sys, warnings

import lightning, torch
from torch.utils.data import DataLoader

import ringfold.torch.elastic as elastic
from ringfold.torch.elastic.lightning import ElasticCallback, ElasticLoader

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
DATA = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))


class Module(lightning.LightningModule):
    def __init__(self, is_automatic):
        super().__init__()
        torch.manual_seed(2)
        self.automatic_optimization = is_automatic
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        loss = self.layer(batch).square().mean()
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            torch.nn.utils.clip_grad_norm_(self.parameters(), 0.1)
            optimizer.step()
        return loss

    def validation_step(self, batch):
        print("validated at step", self.trainer.global_step)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def fit(is_automatic=True, validation=None, **options):
    run = elastic.join(sys.argv[1])
    module = Module(is_automatic)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        **{"accelerator": "cpu", "devices": 1, "max_epochs": 1, "callbacks": [ElasticCallback(run)], **quiet, **options}
    )
    try:
        trainer.fit(module, ElasticLoader(run, DataLoader(DATA, batch_size=8), until=12), validation)
    finally:
        run.leave()
    assert run.step == 12 and trainer.global_step == 12, (run.step, trainer.global_step)
    return [p.tolist() for p in module.parameters()]


def plain():
    module = Module(True)
    optimizer = module.configure_optimizers()
    for step in range(12):
        optimizer.zero_grad()
        module.layer(DATA.split(8)[step % 5]).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
    return [p.tolist() for p in module.parameters()]


assert fit(gradient_clip_val=0.1) == fit(False) == plain()
validation = DataLoader(DATA, batch_size=40)
fit(validation=validation, val_check_interval=5)
for options in ({"max_epochs": 2}, {"accumulate_grad_batches": 2}, {"validation": validation}):
    try:
        fit(**options)
    except ValueError as error:
        print("refused:", error)
print("end: all equal")
"""
TORCHRUN = "from torch.distributed.run import main; main()"


def end_of(child: Child) -> str:
    """The last line of a replica that ended well, with the digest of its model."""
    lines = [line for line in child.succeed(DEADLINE).splitlines() if line.startswith("end: ")]
    assert len(lines) == 1, child.output
    return lines[0]


def assert_equal_ends(*children: Child) -> None:
    ends = {end_of(child) for child in children}
    assert len(ends) == 1, ends
    assert re.fullmatch(rf"end: step {STEPS}, model [0-9a-f]{{16}}", next(iter(ends)))


@pytest.fixture
def torchrun(master: str, spawn_with_torch: Spawn) -> Iterator[Any]:
    """Starts torchrun with one rank."""
    agents: list[Child] = []

    def start(script: str, *arguments: object) -> Child:
        options = ("--standalone", "--nproc-per-node", 1, "--max-restarts", 1, "--monitor-interval", 0.1)
        env = {**ONE_THREAD, "RINGFOLD_MASTERS": master}
        agents.append(spawn_with_torch(TORCHRUN, *options, EXAMPLES / script, *arguments, env=env))
        return agents[-1]

    yield start
    # Its rank is in another session, and ends with it on SIGTERM alone.
    for agent in agents:
        with suppress(ProcessLookupError):
            agent.signal(signal.SIGTERM)
    for agent in agents:
        agent.wait(60)


def rank_of(agent: Child) -> int:
    """The process of the rank that torchrun has started."""
    children = [path.read_text() for path in Path(f"/proc/{agent.pid}/task").glob("*/children")]
    ranks = [
        pid
        for pid in map(int, " ".join(children).split())
        if b"elastic_" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(ranks) == 1, ranks
    return ranks[0]


@pytest.mark.skipif(not is_long(), reason="the long variant: torchrun imports torch twice, which takes 30 s")
@pytest.mark.parametrize("other", ["alone", "torchrun"])
def test_torchrun_restarts_a_killed_replica_which_joins_again(
    other: str, torchrun: Any, master: str, spawn_with_torch: Spawn
) -> None:
    arguments = ("--steps", STEPS, "--replicas", 2, "--pace", 0.02)
    agent = torchrun("elastic_ddp.py", *arguments)
    if other == "torchrun":
        survivor = torchrun("elastic_ddp.py", *arguments)
    else:
        script = EXAMPLES / "elastic_ddp.py"
        survivor = spawn_with_torch(script, "--master", master, *arguments, env=ONE_THREAD)
    agent.wait_for("step 5:", DEADLINE)
    os.kill(rank_of(agent), signal.SIGKILL)
    assert_equal_ends(agent, survivor)
    assert "exitcode: -9" in agent.output
    for each in (agent, survivor):
        assert f"step {STEPS - 1}: loss" in each.output
        # No step was made by one replica alone.
        assert set(re.findall(r"(\d+) replicas", each.output)) == {"2"}


@pytest.mark.parametrize("package", ["lightning", "accelerate"])
def test_a_replica_is_killed_and_another_one_joins(package: str, master: str, spawn: Spawn) -> None:
    env = {**ONE_THREAD, **tools.environment(package)}

    def replica() -> Child:
        script = EXAMPLES / f"elastic_{package}.py"
        return spawn(script, "--master", master, "--steps", STEPS, "--replicas", 2, "--pace", 0.02, env=env)

    survivor, victim = replica(), replica()
    victim.wait_for("step 5:", DEADLINE)
    victim.kill()
    joiner = replica()
    assert_equal_ends(survivor, joiner)
    assert "step 0:" not in joiner.output
    assert f"step {STEPS - 1}: " in joiner.output


def test_a_trainer_alone_trains_as_a_plain_loop_does(master: str, spawn: Spawn) -> None:
    trained = spawn(TRAINERS, master, env={**ONE_THREAD, **tools.environment("lightning")})
    assert end_of(trained) == "end: all equal"
    assert "refused: invalid max_epochs=2: must be 1" in trained.output
    assert "refused: invalid accumulate_grad_batches=2: must be 1" in trained.output
    assert "refused: invalid val_check_interval=1.0: must be a number" in trained.output
    assert {0, 5, 10} == {int(step) for step in re.findall(r"validated at step (\d+)", trained.output)}


def test_ray_restarts_a_killed_actor_which_joins_again(master: str, spawn: Spawn) -> None:
    # Paths of sockets have to be short.
    folder = tempfile.mkdtemp(prefix="rf-", dir="/tmp")
    env = {**ONE_THREAD, **tools.environment("ray"), "HOME": folder, "RAY_TMPDIR": folder}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    try:
        example = spawn(EXAMPLES / "elastic_ray.py", "--master", master, "--steps", STEPS, env=env)
        ends = re.findall(r"replica-\d: from step (\d+) to (\d+), model (\w+)", example.succeed(2 * DEADLINE))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert len(ends) == 2 and len({digest for _, _, digest in ends}) == 1, example.output
    assert {int(last) for _, last, _ in ends} == {STEPS}
    assert int(ends[0][0]) > 50 and int(ends[1][0]) == 0, ends
