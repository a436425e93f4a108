"""The cache of compiled kernels and headers. Files are written atomically."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mscclpp._env import env

# How long to wait for another process that makes the same file.
LOCK_SECONDS = 120.0


def cache_folder() -> Path:
    """The cache folder: ``MSCCLPP_CACHE_DIR``, or ``~/.cache/ringfold/kernels``."""
    given = env().cache_dir
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ringfold" / "kernels"


def cached(name: str, make: Callable[[], bytes]) -> bytes:
    """The contents of a cache file. ``make`` makes them if there is none, once for all processes.

    Without a writable cache folder, ``make`` is called each time.
    """
    path = cache_folder() / name
    try:
        return path.read_bytes()
    except OSError:
        pass
    with _lock(path):
        try:
            return path.read_bytes()
        except OSError:
            pass
        made = make()
        write_atomically(path, made)
        return made


def write_atomically(path: Path, data: bytes) -> bool:
    """Writes a file; readers see all of it or none. False if it failed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
        try:
            with open(fd, "wb") as file:
                file.write(data)
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError:
        return False
    return True


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Locks between processes, if possible. It only saves work."""
    fd = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path.parent / f".lock-{path.name[:2]}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
    except OSError:
        pass
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)
