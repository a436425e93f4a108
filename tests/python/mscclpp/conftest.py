"""What the tests of mscclpp share: ranks that are processes, and programs under mpirun."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forks import ForkServer

sys.path.insert(0, str(Path(__file__).parent))

from world import World  # noqa: E402


@pytest.fixture
def world(tmp_path: Path, lean_forks: ForkServer) -> Iterator[World]:
    """Runs functions of the test's module in ranks; see :mod:`world`."""
    world = World(tmp_path / "world", lean_forks)
    yield world
    world.end()


@pytest.fixture
def torch_world(tmp_path: Path, torch_forks: ForkServer) -> Iterator[World]:
    """As ``world``, for functions that import torch."""
    world = World(tmp_path / "world", torch_forks)
    yield world
    world.end()


@pytest.fixture
def mpirun() -> Callable[[int], tuple[str, ...]]:
    """The command line that starts so many ranks under MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (openmpi-bin)")
    words = ["mpirun", "--oversubscribe"]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    return lambda ranks: (*words, "-n", str(ranks))
