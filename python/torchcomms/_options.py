"""Settings of communicators and of single calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Timeout(timedelta):
    """A length of time; ``Timeout(seconds=5)``. Wherever one is taken, a timedelta or a number of seconds is as good."""


def seconds(timeout: timedelta | float | None) -> float | None:
    """A timeout in seconds; None stays None."""
    if timeout is None or isinstance(timeout, (int, float)):
        return timeout
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    raise TypeError(f"a timeout is a timedelta or a number of seconds, not {timeout!r}")


@dataclass
class CommOptions:
    """What a communicator is made with. None means: as the environment says, or the default."""

    abort_process_on_timeout_or_error: bool | None = None
    timeout: timedelta | float | None = None
    is_high_priority_stream: bool | None = None
    store: Store | None = None
    name: str | None = None
    hints: dict[str, str] | None = None
    enable_reconfigure: bool = False


@dataclass
class BatchP2POptions:
    """What a batch of sends and receives is issued with."""

    hints: dict[str, str] = field(default_factory=dict)
    timeout: timedelta | float | None = None


@dataclass
class ReconfigureOptions:
    """What a communicator is reconfigured with."""

    uuid: int | str = 0
    init_handles: list[str] | set[str] = field(default_factory=list)
    timeout: timedelta | float | None = None
    hints: dict[str, str] = field(default_factory=dict)
