"""Waits until a thread is blocked, for tests that do something to a call that waits."""

from __future__ import annotations

import os
import time
from pathlib import Path

# A call that waits may wake for moments, to look at memory or for signals; one that has not come so far is running.
LOOKS = 5
PAUSE_S = 0.01


def leave_pid(folder: Path, name: str) -> None:
    """Tells other processes, which know the same folder, who this process is; see :func:`wait_until_other_blocked`."""
    (folder / f"{name}.new").write_text(str(os.getpid()))
    (folder / f"{name}.new").rename(folder / name)


def wait_until_other_blocked(folder: Path, name: str, timeout: float = 60.0) -> None:
    """Waits until the process that has left its id under this name is blocked."""
    until = time.monotonic() + timeout
    while not (folder / name).exists():
        assert time.monotonic() < until, f"no process has left its id as {name}"
        time.sleep(0.002)
    wait_until_blocked(int((folder / name).read_text()), timeout=timeout)


def wait_until_blocked(pid: int, thread: int | None = None, timeout: float = 60.0) -> None:
    """Waits until a thread of a process (the main thread by default) sleeps each time it is looked at."""
    stat = Path(f"/proc/{pid}/task/{thread or pid}/stat")
    until = time.monotonic() + timeout
    asleep = 0
    while asleep < LOOKS:
        state = stat.read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
        assert time.monotonic() < until, (
            f"thread {thread or pid} of process {pid} is in state {state}, not asleep"
        )
        time.sleep(PAUSE_S)
