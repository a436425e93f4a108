"""Storages in memory that other processes of the host can map. Needs torch, so it is imported with the first window."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import mmap
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
# Other ranks map only files that nobody can shrink.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
MAP_FIXED = 0x10
# How long to wait for others of this host who move their storages.
TURN_SECONDS = 60.0

_log = logging.getLogger("torchcomms")


def share(storage: torch.UntypedStorage) -> int | None:
    """Moves a storage into shared memory, in place, as ``share_memory_()`` does: all tensors on it see the same values
    as before. The number of the open file that it lies in, which is sealed against shrinking; None if there is none.
    """
    if storage.nbytes() == 0 or Pinned.holds(storage):
        return None
    if storage.is_shared():
        # If another process has it by a file's name, torch would move it away from there.
        strategy: str = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        if strategy == "file_system":
            return None
        number = _file(storage)
        # Others may have the file that torch made, so it is not replaced.
        return number if number is not None and _is_sealed(number) else None
    try:
        with _turn():
            space = os.statvfs(FOLDER)
            if space.f_bavail * space.f_frsize < storage.nbytes() + RESERVE_BYTES:
                _log.info("%d bytes do not fit into %s, so they are not shared", storage.nbytes(), FOLDER)
                return None
            number = _file(storage)
            if number is not None:
                _replace_by_sealed(storage, number)
            return number
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


def _is_sealed(number: int) -> bool:
    return bool(fcntl.fcntl(number, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


def _replace_by_sealed(storage: torch.UntypedStorage, number: int) -> None:
    """Puts a sealed file in the place of the one that torch has just made, under the same number and address: torch's
    lies in a file system, and can't be sealed.
    """
    nbytes = os.fstat(number).st_size
    file = os.memfd_create("torchcomms", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        copied = 0
        while copied < nbytes:
            copied += os.sendfile(file, number, copied, nbytes - copied)
        flags = mmap.MAP_SHARED | MAP_FIXED
        if _mmap(storage.data_ptr(), nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0) == FAILED:
            raise OSError(ctypes.get_errno(), "mapping a sealed file")
        os.dup2(file, number, inheritable=False)
    finally:
        os.close(file)


_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
FAILED = ctypes.c_void_p(-1).value


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
