"""What the tests of torchcomms share: ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forks import ForkServer
from ranks import Ranks, ranks_of


@pytest.fixture
def ranks(torch_forks: ForkServer, tmp_path: Path) -> Iterator[Ranks]:
    """Runs functions of the test's module in ranks; see :mod:`ranks`."""
    with ranks_of(torch_forks, tmp_path / "ranks") as ranks:
        yield ranks
