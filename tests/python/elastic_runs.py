"""Small runs of `ringfold.Run` for the tests of it, in threads and in processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers import DEADLINE


def train(
    master: str,
    seed: int,
    until: int,
    *,
    each: Callable[[Any, int], None] = lambda run, step: None,
    **options: Any,
) -> tuple[bytes, list[int]]:
    """A small run of numpy: the final weights, and the steps it made."""
    import numpy as np
    import ringfold

    chance = np.random.default_rng(seed)
    weights = chance.normal(size=37).astype(np.float32)
    steps = []
    with ringfold.Run(master, state={"weights": weights}, name=f"p{seed}", **options) as run:
        for step in run.steps(until=until):
            steps.append(step)
            gradient = weights - 3 + chance.normal(size=37).astype(np.float32)
            each(run, step)
            run.average(gradient)
            weights -= np.float32(0.1) * gradient
    return weights.tobytes(), steps


PEER = """
import hashlib, pathlib, sys, time
import numpy as np, ringfold

master, seed, until, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
print("ready", flush=True)
while len(sys.argv) > 5 and not pathlib.Path(sys.argv[5]).exists():
    time.sleep(0.01)
chance = np.random.default_rng(seed)
weights = chance.normal(size=20_000).astype(np.float32)
try:
    with ringfold.Run(master, state={"weights": weights}, name=f"p{seed}") as run:
        print("joined", flush=True)
        for step in run.steps(until=until):
            gradient = weights - 3 + chance.normal(size=20_000).astype(np.float32)
            print(f"computes {step}", flush=True)
            time.sleep(pause)
            print(f"reduces {step}", flush=True)
            run.average(gradient)
            weights -= np.float32(0.1) * gradient
            print(f"step {step} {hashlib.sha256(weights).hexdigest()} of {run.world_size}", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
print(f"ended at {run.revision}, stopped: {run.was_stopped}", flush=True)
"""


def steps_of(output: str) -> dict[int, str]:
    """The hash after each step that a process has printed."""
    words = [line.split() for line in output.splitlines() if line.startswith("step ")]
    return {int(line[1]): line[2] for line in words}


def assert_same(*outputs: str) -> None:
    """No two processes have seen different weights after the same step."""
    all_steps = [steps_of(output) for output in outputs]
    for step in set[int]().union(*all_steps):
        assert len({steps[step] for steps in all_steps if step in steps}) == 1, f"step {step} differs"


def begin_together(spawn: Any, gate: Path, program: str, peers: list[tuple[Any, ...]]) -> list[Any]:
    """Starts processes that join together, when all are ready: a run is short."""
    children = [spawn(program, *arguments, gate) for arguments in peers]
    for child in children:
        child.wait_for("ready", DEADLINE)
    gate.touch()
    return children
