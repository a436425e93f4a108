"""How tests of torchcomms run a function in several ranks, each a process of its own, started as torchrun would.

    def sums(factor: int) -> float:                      # in the test's module, at top level
        comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="c")
        ...

    def test_sums_are_right(ranks: Ranks) -> None:       # `ranks` is a fixture of conftest.py
        assert ranks.run(3, sums, 2) == [6.0, 6.0, 6.0]

A rank sees RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (a free port). The processes are
forked from one that has imported torch (see :mod:`forks`), and are killed when the test is over. Arguments and results are
pickled.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from child import Child  # noqa: E402
from forks import ForkServer, torchrun_environments  # noqa: E402

DEADLINE = 60.0

# Settings of the user that must not affect the tests.
_HIDDEN_PREFIXES = (
    "RINGFOLD_",
    "TORCHCOMM",
    "TORCHELASTIC_",
    "OMPI_",
    "PMI_",
    "PALS_",
    "SLURM_",
    "TORCH_FR_",
)
_HIDDEN = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "TORCH_DISTRIBUTED_USE_TORCHCOMMS",
}


@dataclass
class Outcome:
    """How a rank ended."""

    rank: int
    code: int
    """Its exit code; minus the signal's number if a signal ended it."""
    value: Any
    """What the function returned."""
    error: str | None
    """What it raised: type and text, then the traceback. None if it returned; "" if the process ended before either."""
    log: str
    """All that it has printed."""

    @property
    def is_good(self) -> bool:
        return self.error is None and self.code == 0


class Running:
    """Ranks that are running."""

    def __init__(self, children: list[Child], outcomes: list[Path]) -> None:
        self.children = children
        self._outcomes = outcomes

    def wait_for(self, rank: int, text: str, deadline: float = DEADLINE) -> str:
        """The first line with this text that the rank prints."""
        return self.children[rank].wait_for(text, deadline)

    def kill(self, rank: int) -> None:
        """Sends SIGKILL. The rank has ended when this returns."""
        self.children[rank].kill()

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to a rank, if it still runs."""
        self.children[rank].signal(number)

    def outcomes(self, deadline: float = DEADLINE) -> list[Outcome]:
        """How each rank ended, well or not; fails if one has not ended by then."""
        until = time.monotonic() + deadline
        for rank, child in enumerate(self.children):
            try:
                child.wait(max(until - time.monotonic(), 0.1))
            except AssertionError as late:
                logs = "\n".join(f"--- rank {r}:\n{each.output}" for r, each in enumerate(self.children))
                raise AssertionError(f"rank {rank}: {late}\nall ranks printed:\n{logs}") from None
        return [self._outcome(rank, child) for rank, child in enumerate(self.children)]

    def results(self, deadline: float = DEADLINE) -> list[Any]:
        """What the function returned in each rank; fails if it raised in one, or a process ended badly."""
        ended = self.outcomes(deadline)
        bad = [one for one in ended if not one.is_good]
        if bad:
            texts = [f"--- rank {o.rank}, exit code {o.code}: {o.error}\nit printed:\n{o.log}" for o in bad]
            raise AssertionError("\n".join(texts))
        return [one.value for one in ended]

    def _outcome(self, rank: int, child: Child) -> Outcome:
        path = self._outcomes[rank]
        kind, value = pickle.loads(path.read_bytes()) if path.exists() else ("raised", "")
        returned = kind == "returned"
        return Outcome(
            rank, child.wait(1), value if returned else None, None if returned else value, child.output
        )


class Ranks:
    """Starts ranks for one test; a fixture of conftest.py."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._runs = 0
        self._children: list[Child] = []

    def run(
        self,
        world: int,
        function: Callable[..., Any],
        *arguments: Any,
        env: Mapping[str, str | None] | None = None,
        deadline: float = DEADLINE,
        exits_fully: bool = False,
    ) -> list[Any]:
        """Runs a function of the test's module in so many ranks, and gives what each returned."""
        return self.start(world, function, *arguments, env=env, exits_fully=exits_fully).results(deadline)

    def start(
        self,
        world: int,
        function: Callable[..., Any],
        *arguments: Any,
        env: Mapping[str, str | None] | None = None,
        exits_fully: bool = False,
    ) -> Running:
        """Begins to run it. ``env`` adds variables, or removes them (None). See :mod:`forks` for ``exits_fully``."""
        folder = self._folder / f"run{self._runs}"
        self._runs += 1
        folder.mkdir(parents=True)
        module = sys.modules[function.__module__].__file__
        assert module is not None
        outcomes = [folder / f"{rank}.outcome" for rank in range(world)]
        children = []
        for rank, rendezvous in enumerate(torchrun_environments(world)):
            clean = {**_clean_environment(), **rendezvous, "OMP_NUM_THREADS": "1"}
            variables: dict[str, str | None] = {**clean, **(env or {})}
            present = {name: value for name, value in variables.items() if value is not None}
            path = Path(module)
            child = self._server.call_function(
                path, function.__name__, arguments, outcomes[rank], present, exits_fully
            )
            children.append(child)
            self._children.append(child)
        return Running(children, outcomes)

    def end(self) -> None:
        """Kills all that still run."""
        for child in self._children:
            child.end()


def reach(folder: Path, point: str) -> None:
    """Tells the other ranks, which know the same folder, that this one has come to a point."""
    (folder / point).touch()


def await_reached(folder: Path, *points: str, deadline: float = DEADLINE) -> None:
    """Waits until other ranks have come to these points."""
    until = time.monotonic() + deadline
    while missing := [point for point in points if not (folder / point).exists()]:
        assert time.monotonic() < until, f"no rank came to {missing}"
        time.sleep(0.002)


@contextmanager
def ranks_of(server: ForkServer, folder: Path) -> Iterator[Ranks]:
    """Ranks that are killed at the end."""
    ranks = Ranks(server, folder)
    try:
        yield ranks
    finally:
        ranks.end()


def _clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _HIDDEN and not name.startswith(_HIDDEN_PREFIXES)
    }
