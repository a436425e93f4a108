"""Every operation, every type, every reduction, under torchrun; in more worlds with ``./test --long``."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from child import Child, python

pytest.importorskip("torch", reason="torch is not installed")

from matrix_chapters import CHAPTERS  # noqa: E402  (needs torch)

SECONDS = 240.0
PROGRAM = Path(__file__).with_name("matrix.py")
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
def findings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Findings]]:
    """What the ranks of a world have found, each in a dictionary by chapter. A world runs once."""
    children: list[Child] = []

    @functools.cache
    def run(name: str) -> Findings:
        world, shares_memory = WORLDS[name]
        folder = tmp_path_factory.mktemp("matrix")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        env = {"OMP_NUM_THREADS": "1", "RINGFOLD_SHARED_MEMORY": str(int(shares_memory))}
        children.append(Child([python("")[0], *torchrun, PROGRAM, folder], env))
        code = children[-1].wait(SECONDS)
        found: Findings = []
        for rank in range(world):
            path = folder / f"rank{rank}.json"
            found.append(json.loads(path.read_text()) if path.exists() else {})
        for rank, results in enumerate(found):
            if code != 0:
                missing = [chapter.__name__ for chapter in CHAPTERS if chapter.__name__ not in results]
                for chapter in missing:
                    problem = f"rank {rank} never got so far:\n{children[-1].output[-20_000:]}"
                    results[chapter] = {"problems": [problem], "checks": 0}
        return found

    yield run
    for child in children:
        child.end()


# A world runs once if all that it has found is looked at in one process.
@pytest.mark.parametrize(
    "world", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in WORLDS]
)
@pytest.mark.parametrize("promise", [chapter.__name__ for chapter in CHAPTERS])
def test_under_torchrun(findings: Callable[[str], Findings], world: str, promise: str) -> None:
    for results in findings(world):
        assert not results[promise]["problems"], "\n".join(results[promise]["problems"])
        assert results[promise]["checks"] > 0
