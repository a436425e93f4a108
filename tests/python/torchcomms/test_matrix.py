"""Every operation, every type, every reduction, in several worlds; in more of them with ``./test --long``."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from child import Child, python
from forks import ForkServer, torchrun_environments

pytest.importorskip("torch", reason="torch is not installed")

from matrix_chapters import CHAPTERS  # noqa: E402  (needs torch)

SECONDS = 240.0
PROGRAM = Path(__file__).with_name("matrix.py")
# Ranks, and whether they share memory. Those over TCP are started by torchrun, the others are forked.
WORLDS = {"3 ranks": (3, True), "2 ranks over TCP": (2, False)}
if "RINGFOLD_LONG" in os.environ:
    WORLDS = {
        "2 ranks": (2, True),
        "3 ranks": (3, True),
        "4 ranks": (4, True),
        "3 ranks over TCP": (3, False),
    }
Findings = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def findings(
    tmp_path_factory: pytest.TempPathFactory, torch_forks: ForkServer
) -> Iterator[Callable[[str], Findings]]:
    """What the ranks of a world have found, each in a dictionary by chapter. A world runs once."""
    children: list[Child] = []

    @functools.cache
    def run(name: str) -> Findings:
        world, shares_memory = WORLDS[name]
        folder = tmp_path_factory.mktemp("matrix")
        env = {"OMP_NUM_THREADS": "1", "RINGFOLD_SHARED_MEMORY": str(int(shares_memory))}
        if shares_memory:
            begun = [
                torch_forks.run_program(PROGRAM, folder, env={**env, **each})
                for each in torchrun_environments(world)
            ]
        else:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
            begun = [Child.start([python("")[0], *torchrun, PROGRAM, folder], env)]
        children.extend(begun)
        codes = [child.wait(SECONDS) for child in begun]
        output = "\n".join(child.output[-20_000:] for child in begun)
        found: Findings = []
        for rank in range(world):
            path = folder / f"rank{rank}.json"
            found.append(json.loads(path.read_text()) if path.exists() else {})
        for rank, results in enumerate(found):
            if any(codes):
                missing = [chapter.__name__ for chapter in CHAPTERS if chapter.__name__ not in results]
                for chapter in missing:
                    problem = f"rank {rank} never got so far:\n{output}"
                    results[chapter] = {"problems": [problem], "checks": 0}
        return found

    yield run
    for child in children:
        child.end()


# A world runs once, since the tests of its results run in one worker; see scheduling.py.
@pytest.mark.parametrize("world", WORLDS, ids=lambda name: f"@{name}")
@pytest.mark.parametrize("promise", [chapter.__name__ for chapter in CHAPTERS])
def test_every_operation(findings: Callable[[str], Findings], world: str, promise: str) -> None:
    for results in findings(world):
        assert not results[promise]["problems"], "\n".join(results[promise]["problems"])
        assert results[promise]["checks"] > 0
