"""Settings from environment variables: rank, size, timeout, abort. They are read at each call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

METHOD = "TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD"
ABORT = "TORCHCOMM_ABORT_ON_ERROR"
TIMEOUT = "TORCHCOMM_TIMEOUT_SECONDS"
DEFAULT_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class _Launcher:
    """A launcher, and the variables with which it passes rank and size."""

    rank: str
    size: str
    methods: frozenset[str]


_ALL = frozenset({"auto", "mpi", "pals", "torchrun"})
_MPI = frozenset({"auto", "mpi"})

_PALS = _Launcher("PALS_RANKID", "PMI_SIZE", frozenset({"auto", "pals"}))
# By precedence. The variables of torchcomms itself apply to all methods.
_LAUNCHERS = (
    _Launcher("TORCHCOMM_RANK", "TORCHCOMM_SIZE", _ALL),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _MPI),
    _Launcher("PMI_RANK", "PMI_SIZE", _MPI),
    _PALS,
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", frozenset({"auto"})),
    _Launcher("RANK", "WORLD_SIZE", frozenset({"auto", "torchrun"})),
)


# Overrides the environment.
_override: ContextVar[tuple[int, int] | None] = ContextVar("rank_and_size", default=None)


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """Inside it, communicators are made with this rank and size instead of those of the environment."""
    before = _override.set((rank, size))
    try:
        yield
    finally:
        _override.reset(before)


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, from the launcher's variables."""
    override = _override.get()
    if override is not None:
        return override
    method = os.environ.get(METHOD, "auto").strip().lower() or "auto"
    if method not in _ALL:
        raise RuntimeError(f"invalid {METHOD}={method!r}: must be auto, mpi, pals or torchrun")
    launchers = [launcher for launcher in _LAUNCHERS if method in launcher.methods]
    for launcher in launchers:
        rank, size = os.environ.get(launcher.rank), os.environ.get(launcher.size)
        if rank is None and size is None:
            continue
        # PALS passes the size in a variable of PMI, and the rank in its own.
        if launcher.size == _PALS.size and rank is None and (launcher is _PALS or _PALS.rank in os.environ):
            continue
        if rank is None or size is None:
            here, missing = (launcher.size, launcher.rank) if rank is None else (launcher.rank, launcher.size)
            raise RuntimeError(
                f"{here} is set, but {missing} is not: rank and size must come from the same launcher"
            )
        return _checked(launcher, rank, size)
    pairs = ", ".join(f"{launcher.rank}/{launcher.size}" for launcher in launchers)
    raise RuntimeError(
        f"unknown rank and size of this process: none of {pairs} is set; start it with torchrun, mpirun or srun, or set "
        f"them ({METHOD} is {method!r})"
    )


def _checked(launcher: _Launcher, rank: str, size: str) -> tuple[int, int]:
    r, s = _integer(launcher.rank, rank), _integer(launcher.size, size)
    if s < 1:
        raise RuntimeError(f"invalid {launcher.size}={s}: must be at least 1")
    if not 0 <= r < s:
        raise RuntimeError(f"invalid {launcher.rank}={r}: {launcher.size} is {s}, so ranks are 0 to {s - 1}")
    return r, s


def has_timeout() -> bool:
    """Whether the variable of the timeout is set."""
    return TIMEOUT in os.environ


def timeout_seconds() -> float:
    """The timeout of communicators that were made without one."""
    text = os.environ.get(TIMEOUT)
    if text is None:
        return DEFAULT_TIMEOUT_SECONDS
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise RuntimeError(f"invalid {TIMEOUT}={text!r}: must be a number of seconds > 0")
    return value


def aborts_process() -> bool | None:
    """Whether a failure ends the process; None if the variable is not set."""
    text = os.environ.get(ABORT)
    return None if text is None else truth(ABORT, text)


def truth(name: str, text: str) -> bool:
    """The value of a boolean setting.

    >>> truth("X", "Yes"), truth("X", "0")
    (True, False)
    """
    word = text.strip().lower()
    if word in ("1", "true", "yes", "y"):
        return True
    if word in ("0", "false", "no", "n"):
        return False
    raise RuntimeError(f"invalid {name}={text!r}: must be 1, true, yes, y, 0, false, no or n")


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"invalid {name}={text!r}: must be a number") from None
