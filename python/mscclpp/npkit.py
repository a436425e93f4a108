"""Placeholders for a profiler: the functions do nothing."""

from __future__ import annotations

__all__ = ["dump", "init", "shutdown"]


def init(rank: int) -> None:
    """Does nothing."""


def dump(dump_dir: str) -> None:
    """Does nothing."""


def shutdown() -> None:
    """Does nothing."""
