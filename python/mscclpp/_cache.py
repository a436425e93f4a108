"""What is kept between runs: compiled kernels and the headers, in files that are whole or not there."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mscclpp._env import env

# How long to wait for another process that makes the same.
TURN_SECONDS = 120.0


def cache_folder() -> Path:
    """Where it is kept: ``MSCCLPP_CACHE_DIR``, or ``~/.cache/ringfold/kernels``."""
    given = env().cache_dir
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ringfold" / "kernels"


def kept(name: str, make: Callable[[], bytes]) -> bytes:
    """The bytes of a name, made now if nobody has yet. Processes that want the same at the same time make it once. Where
    nothing can be kept, it is made each time.
    """
    path = cache_folder() / name
    try:
        return path.read_bytes()
    except OSError:
        pass
    with _turn(path):
        try:
            return path.read_bytes()
        except OSError:
            pass
        made = make()
        write_whole(path, made)
        return made


def write_whole(path: Path, data: bytes) -> bool:
    """Writes a file so that whoever reads it sees all of it, or none. Whether that could be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        number, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
        try:
            with open(number, "wb") as file:
                file.write(data)
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError:
        return False
    return True


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """One process at a time, as far as that can be had: it saves work, and is needed for nothing else."""
    number = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        number = os.open(path.parent / f".turn-{path.name[:2]}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + TURN_SECONDS
        while time.monotonic() < until:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
    except OSError:
        pass
    try:
        yield
    finally:
        if number >= 0:
            os.close(number)
