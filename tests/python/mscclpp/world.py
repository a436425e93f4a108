"""How tests of mscclpp run a function in several ranks, each a process of its own.

    def sums(factor: int) -> int:                        # in the test's module, at top level
        group = join()
        ...

    def test_sums_are_right(world: World) -> None:       # `world` is a fixture of conftest.py
        assert world.run(3, sums, 2) == [6, 6, 6]

The processes are forked (see :mod:`forks`), unless ``mpirun`` starts them, and are killed when the test is over. Arguments
and results are pickled.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from blocked import leave_pid, wait_until_other_blocked  # noqa: E402
from child import Child, inherited_environment, python  # noqa: E402
from fork_server import call_function  # noqa: E402
from forks import ForkServer  # noqa: E402

if TYPE_CHECKING:
    from mscclpp import CommGroup, TcpBootstrap

DEADLINE = 60.0
Spawn = Callable[..., Child]
"""Starts a script, or code; a fixture."""


class Running:
    """Ranks that are running."""

    def __init__(self, children: list[Child], outcomes: list[Path]) -> None:
        self.children = children
        self.outcomes = outcomes

    def results(self, deadline: float = DEADLINE) -> list[Any]:
        """What the function returned in each rank; fails if it raised in one, or a process ended badly."""
        until = time.monotonic() + deadline
        for child in self.children:
            self._wait(child, until - time.monotonic())
        bad = [
            f"--- rank {rank}:\n{child.output}"
            for rank, child in enumerate(self.children)
            if child.wait(1) or not self.outcomes[rank].exists()
        ]
        assert not bad, "\n".join(bad)
        return [self.outcome(rank) for rank in range(len(self.children))]

    def result(self, rank: int, deadline: float = DEADLINE) -> Any:
        """What the function returned in one rank, whatever becomes of the others."""
        code = self._wait(self.children[rank], deadline)
        assert code == 0, f"rank {rank} ended with exit code {code}:\n{self.children[rank].output}"
        return self.outcome(rank)

    def _wait(self, child: Child, seconds: float) -> int:
        """A rank's exit code. If it does not end in time, all running ranks print their stacks."""
        try:
            return child.wait(max(seconds, 0.1))
        except AssertionError:
            pass
        said = [
            f"--- threads of rank {rank}:\n{_threads(each.pid)}" for rank, each in enumerate(self.children)
        ]
        # Python's own handler of this signal prints the stacks of all threads that it knows.
        for each in self.children:
            each.signal(signal.SIGABRT)
        for rank, each in enumerate(self.children):
            try:
                each.wait(5)
            except AssertionError:
                said.append(f"--- rank {rank} does not even end by SIGABRT")
            said.append(f"--- rank {rank}:\n{each.output}")
        raise AssertionError("\n".join([f"{child} has not ended in time", *said]))

    def outcome(self, rank: int) -> Any:
        """What one rank returned."""
        path = self.outcomes[rank]
        assert path.exists(), self.children[rank].output
        kind, value = pickle.loads(path.read_bytes())
        assert kind == "returned", self.children[rank].output
        return value


def _threads(pid: int) -> str:
    """The state of each thread of a process, native threads included."""
    said = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            name, state, where, call = (
                (task / file).read_text().strip() for file in ("comm", "stat", "wchan", "syscall")
            )
        except OSError:
            continue
        state = state.rpartition(")")[2].split()[0]
        said.append(f"    {name:16} {state} {where or '-'}, system call {call.split()[0]}")
    return "\n".join(said)


class World:
    """Starts ranks for one test; a fixture of conftest.py."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self._folder = folder
        self._server = server
        self._runs = 0
        self._children: list[Child] = []

    def run(
        self,
        size: int,
        function: Callable[..., Any],
        *arguments: Any,
        deadline: float = DEADLINE,
        exits_fully: bool = False,
    ) -> list[Any]:
        """Runs a function of the test's module in so many ranks, and gives what each returned."""
        return self.start(size, function, *arguments, exits_fully=exits_fully).results(deadline)

    def start(
        self,
        size: int,
        function: Callable[..., Any],
        *arguments: Any,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        exits_fully: bool = False,
    ) -> Running:
        """Begins to run it. With a prefix (``mpirun``) one process is started, which starts the ranks.

        See :mod:`forks` for ``exits_fully``.
        """
        self._runs += 1
        folder = self._folder / f"run{self._runs}"
        folder.mkdir(parents=True)
        file = sys.modules[function.__module__].__file__
        assert file is not None
        module = Path(file)
        outcomes = [folder / f"{rank}.outcome" for rank in range(size)]
        variables = {
            **(env or {}),
            "WORLD_SIZE_": str(size),
            "WORLD_FOLDER": str(folder),
            "OMP_NUM_THREADS": "1",
        }
        if prefix:
            order = pickle.dumps((module, function.__name__, pickle.dumps(arguments))).hex()
            launcher = Child.start([*prefix, *python(Path(__file__), order)], variables)
            self._children.append(launcher)
            return Running([launcher] * size, outcomes)
        children = []
        for rank in range(size):
            env = {**inherited_environment(), **variables, "WORLD_RANK": str(rank)}
            child = self._server.call_function(
                module, function.__name__, arguments, outcomes[rank], env, exits_fully
            )
            children.append(child)
            self._children.append(child)
        return Running(children, outcomes)

    def end(self) -> None:
        """Kills all that still run."""
        for child in self._children:
            child.end()


def rank() -> int:
    """The number of this process."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["WORLD_RANK"])


def size() -> int:
    """How many ranks there are."""
    return int(os.environ["WORLD_SIZE_"])


def unique_id(bootstrap: TcpBootstrap, name: str = "id") -> Any:
    """The unique id that rank 0 makes, and leaves in a file for the others."""
    path = Path(os.environ["WORLD_FOLDER"]) / name
    if bootstrap.get_rank() == 0:
        made = bootstrap.create_unique_id()
        path.with_suffix(".new").write_bytes(pickle.dumps(made))
        path.with_suffix(".new").rename(path)
        return made
    until = time.monotonic() + DEADLINE
    while not path.exists():
        assert time.monotonic() < until, "rank 0 has left no id"
        time.sleep(0.002)
    return pickle.loads(path.read_bytes())


def meet(name: str = "id") -> TcpBootstrap:
    """A bootstrap of all ranks."""
    from mscclpp import TcpBootstrap

    bootstrap = TcpBootstrap.create(rank(), size())
    bootstrap.initialize(unique_id(bootstrap, name), timeout_sec=DEADLINE)
    return bootstrap


class _Launcher:
    """What mpi4py's communicator is to a CommGroup: rank, size, and something that gives rank 0's object to all."""

    def __init__(self, name: str) -> None:
        self.rank, self.size = rank(), size()
        self._path = Path(os.environ["WORLD_FOLDER"]) / name

    def bcast(self, made: Any, root: int) -> Any:
        if self.rank == root:
            self._path.with_suffix(".new").write_bytes(pickle.dumps(made))
            self._path.with_suffix(".new").rename(self._path)
            return made
        until = time.monotonic() + DEADLINE
        while not self._path.exists():
            assert time.monotonic() < until, "rank 0 has left no id"
            time.sleep(0.002)
        return pickle.loads(self._path.read_bytes())


def join(name: str = "group") -> CommGroup:
    """A group of all ranks."""
    from mscclpp import CommGroup

    return CommGroup(_Launcher(name), timeout_sec=DEADLINE)


def reach(point: str) -> None:
    """Tells the other ranks that this one has come to a point."""
    leave_pid(Path(os.environ["WORLD_FOLDER"]), f"{point} of {rank()}")


def await_reached(point: str, *ranks: int) -> None:
    """Waits until these ranks have come to a point."""
    for each in ranks:
        path = Path(os.environ["WORLD_FOLDER"]) / f"{point} of {each}"
        until = time.monotonic() + DEADLINE
        while not path.exists():
            assert time.monotonic() < until, f"rank {each} did not come to {point!r}"
            time.sleep(0.002)


def await_gone(point: str, *ranks: int) -> None:
    """Waits until these ranks have come to a point, and their processes have ended."""
    await_reached(point, *ranks)
    for each in ranks:
        pid = (Path(os.environ["WORLD_FOLDER"]) / f"{point} of {each}").read_text()
        until = time.monotonic() + DEADLINE
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < until, f"rank {each} does not end"
            time.sleep(0.002)


def await_blocked(point: str, *ranks: int) -> None:
    """Waits until these ranks have come to a point, and sleep in the call behind it."""
    for each in ranks:
        wait_until_other_blocked(Path(os.environ["WORLD_FOLDER"]), f"{point} of {each}", DEADLINE)


def others() -> list[int]:
    """All ranks but this one."""
    return [other for other in range(size()) if other != rank()]


if __name__ == "__main__":
    # Tests import this file by its name: that must not load it a second time.
    sys.modules["world"] = sys.modules["__main__"]
    module, function, arguments = pickle.loads(bytes.fromhex(sys.argv[1]))
    call_function(module, function, arguments, Path(os.environ["WORLD_FOLDER"]) / f"{rank()}.outcome")
