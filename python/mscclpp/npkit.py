"""Names of a profiler that is not here: programs that call it run on, and nothing is recorded."""

from __future__ import annotations

__all__ = ["dump", "init", "shutdown"]


def init(rank: int) -> None:
    """Does nothing."""


def dump(dump_dir: str) -> None:
    """Does nothing."""


def shutdown() -> None:
    """Does nothing."""
