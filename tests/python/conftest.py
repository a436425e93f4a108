"""What all Python tests share: a master, processes that end with the test, and skips that are reported by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import scheduling
from child import Child, Spawn, Start, python
from forks import LEAN_MODULES, TORCH_MODULES, ForkServer


@pytest.fixture
def master() -> Iterator[str]:
    """The address of a master that runs during the test."""
    import pccl

    node = pccl.MasterNode("127.0.0.1:0")
    node.run()
    try:
        yield node.address
    finally:
        node.interrupt()
        node.wait()


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[Child] = []

    def start(*words: str | Path, env: Mapping[str, str] | None = None) -> Child:
        children.append(Child.start(words, env))
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.fixture
def spawn(start: Start) -> Spawn:
    def spawn(script_or_code: str | Path, *arguments: object, env: Mapping[str, str] | None = None) -> Child:
        return start(*python(script_or_code, *arguments), env=env)

    return spawn


@pytest.fixture(scope="session")
def torch_forks() -> Iterator[ForkServer]:
    """Forks processes that have imported torch; see :mod:`forks`."""
    pytest.importorskip("torch", reason="torch is not installed")
    server = ForkServer(*TORCH_MODULES)
    yield server
    server.close()


@pytest.fixture(scope="session")
def lean_forks() -> Iterator[ForkServer]:
    """Forks processes that have imported numpy, and not torch; see :mod:`forks`."""
    server = ForkServer(*LEAN_MODULES)
    yield server
    server.close()


@pytest.fixture
def spawn_with_torch(torch_forks: ForkServer) -> Iterator[Spawn]:
    """As ``spawn``, for programs that import torch and whose start and end are not what is tested."""
    children: list[Child] = []

    def spawn(script_or_code: str | Path, *arguments: object, env: Mapping[str, str] | None = None) -> Child:
        children.append(torch_forks.run_program(script_or_code, *arguments, env=env))
        return children[-1]

    yield spawn
    for child in children:
        child.end()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests begin first."""
    scheduling.long_ones_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share something expensive run in one worker; see :mod:`scheduling`."""
    return scheduling.scheduler(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes a skip to the file that ./test reads, in the format of the Rust tests."""
    path = os.environ.get("RINGFOLD_SKIPS")
    if path is None or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    name = report.nodeid.rpartition("/")[2]
    line = f"skipped: {name}: {reason.removeprefix('Skipped: ').strip()}".replace("\n", "; ")
    # One write of one line in append mode: lines of several processes do not mix.
    with open(path, "ab", buffering=0) as skips:
        skips.write(f"{line}\n".encode())
