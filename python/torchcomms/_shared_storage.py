"""Storages in memory that other processes of the host can map. Needs torch, so it is imported with the first window."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.multiprocessing

# Where torch's shared memory lies. A write beyond its end is a signal that ends the process.
FOLDER = "/dev/shm"
# What is left free for others.
RESERVE_BYTES = 1 << 20
# How long to wait for others of this host who move their storages.
TURN_SECONDS = 60.0

_log = logging.getLogger("torchcomms")


def share(storage: torch.UntypedStorage) -> int | None:
    """Moves a storage into shared memory, in place, as ``share_memory_()`` does: all tensors on it see the same values
    as before. The number of the open file that it lies in; None if it can't be moved, and then it stays as it is.
    """
    if storage.nbytes() == 0 or Pinned.holds(storage):
        return None
    if storage.is_shared():
        # If another process has it by a file's name, torch would move it away from there.
        strategy: str = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        if strategy == "file_system":
            return None
        return _file(storage)
    try:
        with _turn():
            space = os.statvfs(FOLDER)
            if space.f_bavail * space.f_frsize < storage.nbytes() + RESERVE_BYTES:
                _log.info("%d bytes do not fit into %s, so they are not shared", storage.nbytes(), FOLDER)
                return None
            return _file(storage)
    except (OSError, RuntimeError) as error:
        _log.info("a tensor's memory can't be shared: %s", error)
        return None


class Pinned:
    """A storage that is not moved while this lives: someone writes where it is now."""

    _counts: Counter[int] = Counter()

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage
        self._key = storage._cdata
        Pinned._counts[self._key] += 1

    def __del__(self) -> None:
        Pinned._counts[self._key] -= 1
        if not Pinned._counts[self._key]:
            del Pinned._counts[self._key]

    @classmethod
    def holds(cls, storage: torch.UntypedStorage) -> bool:
        """Whether a storage must not be moved."""
        return storage._cdata in cls._counts


def mapped(file: int) -> torch.UntypedStorage:
    """A storage that is the memory of an open file."""
    # Torch's stubs lack it. It keeps the file by a number of its own.
    new: Callable[[int, int], torch.UntypedStorage] = getattr(torch.UntypedStorage, "_new_shared_fd_cpu")  # noqa: B009
    return new(file, os.fstat(file).st_size)


def _file(storage: torch.UntypedStorage) -> int | None:
    number, _ = storage._share_fd_cpu_()
    # Memory of a file that torch has not kept open has none.
    return number if number >= 0 else None


@contextmanager
def _turn() -> Iterator[None]:
    """One process of the host at a time: whoever has looked how much space there is shall find it."""
    folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + TURN_SECONDS
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.001)
        yield
    finally:
        os.close(folder)
