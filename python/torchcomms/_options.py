"""Options of communicators and of single calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

TimeoutLike = timedelta | float | None
Hints = dict[str, str] | None


class Timeout(timedelta):
    """A timeout: ``Timeout(seconds=5)``. A timedelta or a number of seconds works in its place."""


def seconds(timeout: TimeoutLike) -> float | None:
    """A timeout in seconds; None stays None."""
    if timeout is None or isinstance(timeout, (int, float)):
        return timeout
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    raise TypeError(f"invalid timeout {timeout!r}: must be a timedelta or a number of seconds")


@dataclass
class CommOptions:
    """Options of a communicator. None is the value of the environment variable, or the default."""

    abort_process_on_timeout_or_error: bool | None = None
    timeout: TimeoutLike = None
    is_high_priority_stream: bool | None = None
    store: Store | None = None
    name: str | None = None
    hints: Hints = None
    enable_reconfigure: bool = False


@dataclass
class BatchP2POptions:
    """Options of a batch of sends and receives."""

    hints: dict[str, str] = field(default_factory=dict)
    timeout: TimeoutLike = None


@dataclass
class ReconfigureOptions:
    """Options of a reconfiguration."""

    uuid: int | str = 0
    init_handles: list[str] | set[str] = field(default_factory=list)
    timeout: TimeoutLike = None
    hints: dict[str, str] = field(default_factory=dict)
