"""The recipes of deploy/slurm, on a real Slurm of one node."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers import DEADLINE
from slurm import Slurm
from slurm import slurm as new_slurm

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
STEPS = 80


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    with new_slurm() as cluster:
        yield cluster


class Job:
    """A job of a recipe, and what it has printed."""

    def __init__(
        self, slurm: Slurm, recipe: str, *options: object, env: dict[str, str] | None = None
    ) -> None:
        self._slurm = slurm
        self.log = slurm.folder / "log"
        variables = {"PYTHON": sys.executable, "RUN": str(slurm.folder / "run"), "OMP_NUM_THREADS": "1"}
        variables |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        words = ("sbatch", "--parsable", "--chdir", ROOT, f"--output={self.log}", *options)
        program = ("--steps", STEPS, "--every", 10, "--pace", 0.05, "--replicas-min", 2)
        self.id = slurm.call(
            *words, ROOT / "deploy" / "slurm" / recipe, *program, env={**variables, **(env or {})}
        )

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_for(self, text: str, count: int = 1) -> None:
        def is_printed() -> bool:
            return self.output.count(text) >= count

        try:
            self._slurm.wait_until(f"{count} times {text!r}", is_printed, DEADLINE)
        except AssertionError as error:
            raise AssertionError(f"{error}\nthe job printed\n{self.output[-4000:]}") from None

    def is_over(self) -> bool:
        return (
            not self._slurm.call("squeue", "-h", "-j", self.id, "-t", "all", "-o", "%T")
            .replace("COMPLETED", "")
            .strip()
        )

    def assert_all_end_equal(self, count: int) -> None:
        self.wait_for(f"end: step {STEPS}, model ", count)
        self._slurm.wait_until("the job is completed", self.is_over, DEADLINE)
        assert len(set(re.findall(rf"end: step {STEPS}, model (\w+)", self.output))) == 1, self.output


def replica(slurm: Slurm, name: str) -> int:
    """The process of a replica of train.py. Clusters of other tests have replicas of the same name."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        is_here = any(word.startswith(bytes(slurm.folder)) for word in words)
        if is_here and b"--name" in words and words[words.index(b"--name") + 1] == name.encode():
            return int(path.parent.name)
    raise AssertionError(f"there is no replica {name}")


def test_a_job_survives_a_killed_task_and_a_requeue(slurm: Slurm) -> None:
    job = Job(slurm, "train.sbatch", "--nodes=1", "--ntasks-per-node=2")
    job.wait_for("step 20:", 2)
    os.kill(replica(slurm, f"{slurm.host}-1"), signal.SIGKILL)
    job.wait_for("replica 1 ended with code 137: starting it again")
    job.wait_for("step 40:", 2)
    slurm.call("scontrol", "requeue", job.id)
    slurm.start_requeued(job.id)
    job.wait_for(f"start 1 of job {job.id}")
    job.assert_all_end_equal(2)
    # The killed one began from a checkpoint when it was started again, and both after the requeue.
    resumed = [int(step) for step in re.findall(r"resumes at step (\d+)", job.output)]
    assert len(resumed) == 3 and min(resumed[1:]) >= 30, resumed
    assert "Restarts=1 " in slurm.call("scontrol", "show", "job", job.id)


def test_a_job_goes_back_to_the_queue_before_its_time_limit(slurm: Slurm) -> None:
    job = Job(slurm, "train.sbatch", "--nodes=1", "--ntasks-per-node=2")
    job.wait_for("step 30:", 2)
    # What Slurm sends before the time limit.
    slurm.call("scancel", "--signal=USR1", "--batch", job.id)
    job.wait_for("the time is over: back to the queue")
    slurm.start_requeued(job.id)
    job.assert_all_end_equal(2)
    assert job.output.count("stopped at step ") == 2
    resumed = [int(step) for step in re.findall(r"resumes at step (\d+)", job.output)]
    assert len(resumed) == 2 and min(resumed) >= 20, resumed


def test_replicas_of_an_array_come_and_go_alone(slurm: Slurm, master: str) -> None:
    job = Job(slurm, "peers.sbatch", "--array=0-1", "--open-mode=append", env={"RINGFOLD_MASTERS": master})
    job.wait_for("step 10:", 2)
    os.kill(replica(slurm, "replica-1"), signal.SIGKILL)
    job.wait_for("replica 1 ended with code 137: back to the queue")
    slurm.start_requeued(f"{job.id}_1")
    job.wait_for("start 1 of replica 1")
    job.assert_all_end_equal(2)
    assert "start 1 of replica 0" not in job.output
