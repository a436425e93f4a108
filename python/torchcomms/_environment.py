"""What the environment says: who we are among the ranks, and how communicators behave. It is read at each call."""

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
    """A program that starts ranks, and the variables by which it tells them who they are."""

    rank: str
    size: str
    methods: frozenset[str]


_ALL = frozenset({"auto", "mpi", "pals", "torchrun"})
_MPI = frozenset({"auto", "mpi"})

_PALS = _Launcher("PALS_RANKID", "PMI_SIZE", frozenset({"auto", "pals"}))
# In the order in which they are believed. What was said for communicators alone is always heard.
_LAUNCHERS = (
    _Launcher("TORCHCOMM_RANK", "TORCHCOMM_SIZE", _ALL),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _MPI),
    _Launcher("PMI_RANK", "PMI_SIZE", _MPI),
    _PALS,
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", frozenset({"auto"})),
    _Launcher("RANK", "WORLD_SIZE", frozenset({"auto", "torchrun"})),
)


# What goes before the environment.
_told: ContextVar[tuple[int, int] | None] = ContextVar("rank_and_size", default=None)


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    """Within it, communicators are made as this rank of so many, whatever the environment says."""
    before = _told.set((rank, size))
    try:
        yield
    finally:
        _told.reset(before)


def rank_and_size() -> tuple[int, int]:
    """This process's rank, and how many there are, as the launcher tells."""
    told = _told.get()
    if told is not None:
        return told
    method = os.environ.get(METHOD, "auto").strip().lower() or "auto"
    if method not in _ALL:
        raise RuntimeError(f"{METHOD} is {method!r}; it can be auto, mpi, pals or torchrun")
    launchers = [launcher for launcher in _LAUNCHERS if method in launcher.methods]
    for launcher in launchers:
        rank, size = os.environ.get(launcher.rank), os.environ.get(launcher.size)
        if rank is None and size is None:
            continue
        # PALS tells the size by a variable of PMI, and the rank by one of its own.
        if launcher.size == _PALS.size and rank is None and (launcher is _PALS or _PALS.rank in os.environ):
            continue
        if rank is None or size is None:
            here, missing = (launcher.size, launcher.rank) if rank is None else (launcher.rank, launcher.size)
            raise RuntimeError(
                f"{here} is set, but {missing} is not: the rank and the size come from one pair"
            )
        return _checked(launcher, rank, size)
    pairs = ", ".join(f"{launcher.rank}/{launcher.size}" for launcher in launchers)
    raise RuntimeError(
        f"the rank and size of this process are not known: none of these is set: {pairs}. "
        f"Start it by torchrun, mpirun or srun, or set them ({METHOD} is {method!r})"
    )


def _checked(launcher: _Launcher, rank: str, size: str) -> tuple[int, int]:
    r, s = _integer(launcher.rank, rank), _integer(launcher.size, size)
    if s < 1:
        raise RuntimeError(f"{launcher.size} is {s}; there is at least one rank")
    if not 0 <= r < s:
        raise RuntimeError(
            f"{launcher.rank} is {r}, out of range: {launcher.size} is {s}, so ranks are 0 to {s - 1}"
        )
    return r, s


def timeout_seconds() -> float:
    """How long operations may take, if nobody has said it of a communicator."""
    text = os.environ.get(TIMEOUT)
    if text is None:
        return DEFAULT_TIMEOUT_SECONDS
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise RuntimeError(f"{TIMEOUT} is {text!r}; it is a number of seconds above 0")
    return value


def aborts_process() -> bool | None:
    """Whether a failure ends the process; None if the environment does not say."""
    text = os.environ.get(ABORT)
    return None if text is None else truth(ABORT, text)


def truth(name: str, text: str) -> bool:
    """Whether a setting is on.

    >>> truth("X", "Yes"), truth("X", "0")
    (True, False)
    """
    word = text.strip().lower()
    if word in ("1", "true", "yes", "y"):
        return True
    if word in ("0", "false", "no", "n"):
        return False
    raise RuntimeError(f"{name} is {text!r}; it can be 1, true, yes or y, or 0, false, no or n")


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"{name} is {text!r}, which is no number") from None
