"""How tests are distributed over the workers of pytest-xdist (``-n 3 --dist loadgroup``).

Tests that share something expensive run in one worker. That is said by their names, since marks do not reach the scheduler
(those of xdist have no effect with pytest 9): the tests of :data:`ONE_WORKER`, and those whose last parameter has an id
that begins with ``@``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ONE_WORKER = {"test_install.py"}
"""Modules whose tests all run in one worker."""

LONG = (
    *("test_matrix.py", "test_seeds.py", "test_install.py", "test_examples.py", "test_headers.py"),
    *("test_elastic_tools.py", "test_ray.py", "test_slurm.py", "test_systemd.py"),
)
"""Modules with long tests. They start first, so that no worker is left with one at the end."""


def module_of(nodeid: str) -> str:
    """The file name of a test's module."""
    return nodeid.partition("::")[0].rpartition("/")[2]


def group_of(nodeid: str) -> str:
    """The name of the tests that run in the same worker as this one."""
    module = module_of(nodeid)
    shared = re.search(r"(?<=[\[-])@[^@\]]+(?=\]$)", nodeid)
    return module if module in ONE_WORKER else module + shared[0] if shared else nodeid


def long_ones_first(items: list[pytest.Item]) -> None:
    """Moves the tests of :data:`LONG` to the front."""
    items.sort(key=lambda item: module_of(item.nodeid) not in LONG)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of pytest-xdist for ``--dist loadgroup``."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)
