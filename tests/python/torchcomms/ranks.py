"""How tests of torchcomms run a function in several ranks, each a process of its own, started as torchrun would.

    def sums(factor: int) -> float:                      # in the test's module, at top level
        comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="c")
        ...

    def test_sums_are_right(ranks: Ranks) -> None:       # `ranks` is a fixture of conftest.py
        assert ranks.run(3, sums, 2) == [6.0, 6.0, 6.0]

A rank sees RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (a port nobody listens on). The processes are
forked from one that has imported torch, so that starting one takes milliseconds, and are gone when the test is over.
What a function takes and returns is pickled.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ports import free_port  # noqa: E402

DEADLINE = 60.0

# What the user of the tests has set must not change what they see.
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
    """Ranks that are under way."""

    def __init__(self, nursery: Nursery, folder: Path, world: int) -> None:
        self._nursery = nursery
        self._folder = folder
        self.world = world
        self.pids: list[int] = []

    def log(self, rank: int) -> str:
        """What a rank has printed so far."""
        path = self._folder / f"{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, rank: int, text: str, deadline: float = DEADLINE) -> str:
        """The first line with this text that the rank prints (with ``flush=True``)."""
        until = time.monotonic() + deadline
        while True:
            code = self._nursery.code(self.pids[rank])
            printed = self.log(rank)
            for line in printed[: printed.rfind("\n") + 1].splitlines():
                if text in line:
                    return line
            assert code is None, (
                f"rank {rank} ended with {code} before it printed {text!r}; it printed:\n{printed}"
            )
            assert time.monotonic() < until, (
                f"rank {rank} took more than {deadline} s to print {text!r}:\n{printed}"
            )
            time.sleep(0.002)

    def kill(self, rank: int) -> None:
        """SIGKILL: it has no chance to say goodbye. When this returns, it is dead."""
        self.signal(rank, signal.SIGKILL)
        self._nursery.wait(self.pids[rank], DEADLINE)

    def signal(self, rank: int, number: int) -> None:
        if self._nursery.code(self.pids[rank]) is None:
            os.kill(self.pids[rank], number)

    def outcomes(self, deadline: float = DEADLINE) -> list[Outcome]:
        """How each rank ended, well or not; fails if one has not ended by then."""
        until = time.monotonic() + deadline
        ended = []
        for rank, pid in enumerate(self.pids):
            code = self._nursery.wait(pid, until - time.monotonic())
            if code is None:
                logs = "\n".join(f"--- rank {r}:\n{self.log(r)}" for r in range(self.world))
                raise AssertionError(f"rank {rank} has not ended within {deadline} s; they printed:\n{logs}")
            ended.append(self._outcome(rank, code))
        return ended

    def results(self, deadline: float = DEADLINE) -> list[Any]:
        """What the function returned in each rank; fails if it raised in one, or a process ended badly."""
        ended = self.outcomes(deadline)
        bad = [one for one in ended if not one.is_good]
        if bad:
            texts = [f"--- rank {o.rank}, exit code {o.code}: {o.error}\nit printed:\n{o.log}" for o in bad]
            raise AssertionError("\n".join(texts))
        return [one.value for one in ended]

    def end(self) -> None:
        """Kills those that still run."""
        for rank in range(len(self.pids)):
            self.kill(rank)

    def _outcome(self, rank: int, code: int) -> Outcome:
        path = self._folder / f"{rank}.outcome"
        kind, value = pickle.loads(path.read_bytes()) if path.exists() else ("raised", "")
        returned = kind == "returned"
        return Outcome(rank, code, value if returned else None, None if returned else value, self.log(rank))


class Nursery:
    """The process that ranks are forked from."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        program = Path(__file__).with_name("nursery.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**_clean_environment(), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self._line = ours
        self._news = threading.Condition()
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._keys = 0
        self._is_over = False
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, order: dict[str, Any]) -> int:
        """Forks a rank; its process id."""
        with self._news:
            self._keys += 1
            key = self._keys
            self._line.sendall(json.dumps({**order, "key": key}).encode() + b"\n")
            self._news.wait_for(lambda: key in self._pids or self._is_over, DEADLINE)
            assert key in self._pids, "the process that ranks are forked from has failed"
            return self._pids[key]

    def code(self, pid: int) -> int | None:
        """The exit code of a rank that has ended."""
        with self._news:
            return self._codes.get(pid)

    def wait(self, pid: int, seconds: float) -> int | None:
        """Waits for a rank's end; None if it has not ended by then."""
        with self._news:
            self._news.wait_for(lambda: pid in self._codes or self._is_over, max(seconds, 0.0))
            return self._codes.get(pid)

    def close(self) -> None:
        self._line.close()
        self._process.kill()
        self._process.wait(30)

    def _listen(self) -> None:
        with self._line.makefile("r") as lines:
            for line in lines:
                message = json.loads(line)
                with self._news:
                    if "ended" in message:
                        self._codes[message["ended"]] = message["code"]
                    else:
                        self._codes.pop(message["pid"], None)
                        self._pids[message["key"]] = message["pid"]
                    self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()


class Ranks:
    """Starts ranks for one test; a fixture of conftest.py."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        self._nursery = nursery
        self._folder = folder
        self._all: list[Running] = []

    def run(
        self,
        world: int,
        function: Callable[..., Any],
        *arguments: Any,
        env: Mapping[str, str | None] | None = None,
        deadline: float = DEADLINE,
    ) -> list[Any]:
        """Runs a function of the test's module in so many ranks, and gives what each returned."""
        return self.start(world, function, *arguments, env=env).results(deadline)

    def start(
        self,
        world: int,
        function: Callable[..., Any],
        *arguments: Any,
        env: Mapping[str, str | None] | None = None,
    ) -> Running:
        """Begins to run it. ``env`` adds variables, or takes them away (None)."""
        folder = self._folder / f"run{len(self._all)}"
        folder.mkdir(parents=True)
        running = Running(self._nursery, folder, world)
        self._all.append(running)
        module = sys.modules[function.__module__].__file__
        port = free_port()
        for rank in range(world):
            variables: dict[str, str | None] = {
                **_clean_environment(),
                **{"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)},
                **{"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
                **{"OMP_NUM_THREADS": "1", **(env or {})},
            }
            order = {
                "env": {name: value for name, value in variables.items() if value is not None},
                "module": module,
                "arguments": pickle.dumps((function.__name__, arguments)).hex(),
                "outcome": str(folder / f"{rank}.outcome"),
                "log": str(folder / f"{rank}.log"),
            }
            running.pids.append(self._nursery.start(order))
        return running

    def end(self) -> None:
        """Kills whatever still runs."""
        for running in self._all:
            running.end()


def reach(folder: Path, point: str) -> None:
    """Tells the other ranks, which know the same folder, that this one has come to a point."""
    (folder / point).touch()


def await_reached(folder: Path, *points: str, deadline: float = DEADLINE) -> None:
    """Waits until other ranks have come to these points."""
    until = time.monotonic() + deadline
    while missing := [point for point in points if not (folder / point).exists()]:
        assert time.monotonic() < until, f"nobody came to {missing}"
        time.sleep(0.002)


@contextmanager
def ranks_of(nursery: Nursery, folder: Path) -> Iterator[Ranks]:
    """Ranks that are gone at the end."""
    ranks = Ranks(nursery, folder)
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
