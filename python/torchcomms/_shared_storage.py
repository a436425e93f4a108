"""Storages in shared memory of the host. Needs torch, so it is imported with the first window."""

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

# The folder of torch's shared memory. A write without free space in it kills the process.
FOLDER = "/dev/shm"
# Space that is left free for others.
RESERVE_BYTES = 1 << 20
# Other ranks map only files that cannot shrink.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
MAP_FIXED = 0x10
# How long to wait for other processes that move their storages.
LOCK_SECONDS = 60.0

_log = logging.getLogger("torchcomms")


def share(storage: torch.UntypedStorage) -> int | None:
    """Moves a storage into shared memory, in place, as ``share_memory_()`` does. Its tensors keep their values.

    Returns the descriptor of its file, which is sealed against shrinking; None if it cannot be shared.
    """
    if storage.nbytes() == 0 or Pinned.holds(storage):
        return None
    if storage.is_shared():
        # With named files, torch would move the storage away from the file that other processes have.
        strategy: str = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        if strategy == "file_system":
            return None
        fd = _descriptor(storage)
        # Not replaced: other processes may have the file that torch made.
        return fd if fd is not None and _is_sealed(fd) else None
    try:
        with _locked_folder():
            space = os.statvfs(FOLDER)
            if space.f_bavail * space.f_frsize < storage.nbytes() + RESERVE_BYTES:
                _log.info("not sharing a tensor: %d bytes do not fit into %s", storage.nbytes(), FOLDER)
                return None
            fd = _descriptor(storage)
            if fd is not None:
                _replace_by_sealed(storage, fd)
            return fd
    except (OSError, RuntimeError) as error:
        _log.info("not sharing a tensor: %s", error)
        return None


class Pinned:
    """Keeps a storage where it is while this object lives: other ranks write to its address."""

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
        """Whether a storage is pinned."""
        return storage._cdata in cls._counts


def mapped(file: int) -> torch.UntypedStorage:
    """A storage that maps an open file."""
    # Torch's stubs lack it. It duplicates the descriptor.
    new: Callable[[int, int], torch.UntypedStorage] = getattr(torch.UntypedStorage, "_new_shared_fd_cpu")  # noqa: B009
    return new(file, os.fstat(file).st_size)


def _is_sealed(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


def _replace_by_sealed(storage: torch.UntypedStorage, fd: int) -> None:
    """Replaces the file that torch has just made by a sealed one, at the same descriptor and address.

    Torch's file lies in a file system, where it cannot be sealed.
    """
    nbytes = os.fstat(fd).st_size
    file = os.memfd_create("torchcomms", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        copied = 0
        while copied < nbytes:
            copied += os.sendfile(file, fd, copied, nbytes - copied)
        flags = mmap.MAP_SHARED | MAP_FIXED
        if _mmap(storage.data_ptr(), nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0) == FAILED:
            raise OSError(ctypes.get_errno(), "mapping a sealed file")
        os.dup2(file, fd, inheritable=False)
    finally:
        os.close(file)


_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
FAILED = ctypes.c_void_p(-1).value


def _descriptor(storage: torch.UntypedStorage) -> int | None:
    fd, _ = storage._share_fd_cpu_()
    # Negative if torch has closed the file.
    return fd if fd >= 0 else None


@contextmanager
def _locked_folder() -> Iterator[None]:
    """Locks the folder between processes, so that checked free space stays free."""
    folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.001)
        yield
    finally:
        os.close(folder)
