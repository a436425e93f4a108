"""What the tests of torchcomms share: ranks that are forked from one process, so that torch is imported once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Nursery, Ranks, ranks_of


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that all ranks are forked from."""
    pytest.importorskip("torch", reason="torch is not installed")
    one = Nursery()
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def ranks(nursery: Nursery, tmp_path: Path) -> Iterator[Ranks]:
    """Runs functions of the test's module in ranks; see :mod:`ranks`."""
    with ranks_of(nursery, tmp_path / "ranks") as ranks:
        yield ranks
