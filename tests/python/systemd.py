"""A real systemd in namespaces of its own. It sees the files of the machine, changes none, and starts the units of a test alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from child import Child
from variants import is_long

SYSTEMD = Path("/lib/systemd/systemd")
# What is written to /etc and /usr/local is in memory. Targets that the units need are empty: nothing of the machine is started.
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/lock
for folder in /etc /usr/local /opt; do
  mkdir -p /run/over$folder/upper /run/over$folder/work
  mount -t overlay overlay -o lowerdir=$folder,upperdir=/run/over$folder/upper,workdir=/run/over$folder/work $folder
done
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /var/lib
cp -r {folder}/root/. /
# Credentials of units are mounted by another process.
mount --make-rshared /
export container=test SYSTEMD_UNIT_PATH={folder}/units SYSTEMD_LOG_TARGET=console
exec {systemd} --system --unit=default.target --show-status=no
"""
TARGETS = ("sysinit", "basic", "shutdown", "network-online", "multi-user", "default")


class Systemd:
    """A systemd that runs."""

    def __init__(self, process: Child) -> None:
        self._process = process
        self._pid = 0

    def call(self, *words: object) -> str:
        """Runs systemctl."""
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--pid"]
        command = [*enter, "systemctl", *map(str, words)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    def show(self, unit: str) -> dict[str, str]:
        """The properties of a unit."""
        return dict(line.partition("=")[::2] for line in self.call("show", unit).splitlines())

    def kill(self, unit: str, signal: str) -> None:
        """Sends a signal to the process of a unit."""
        self.call("kill", "--kill-who=main", f"--signal={signal}", unit)

    def wait_until(self, what: str, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, (
                f"not within {seconds} s: {what}; {self._process.output[-3000:]}"
            )
            time.sleep(0.1)

    def wait_for_boot(self) -> None:
        """Waits until systemctl gets an answer."""

        def is_there() -> bool:
            # The child of unshare is process 1.
            children = (
                Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            )
            if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
                return False
            self._pid = int(children[0])
            try:
                return "default.target" in self.call("list-units", "--type=target")
            except AssertionError:
                return False

        self.wait_until("systemd has started", is_there, 60)


@contextmanager
def systemd(folder: Path, units: Mapping[str, str], files: Mapping[str, str]) -> Iterator[Systemd]:
    """A systemd with these units, and with these files in addition to those of the machine; skips the test where it cannot run."""
    if not is_long():
        pytest.skip("the long variant: needs systemd")
    if os.geteuid() != 0 or not SYSTEMD.exists() or shutil.which("unshare") is None:
        pytest.skip("needs root, systemd and unshare")
    for target in TARGETS:
        path = folder / "units" / f"{target}.target"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[Unit]\nDefaultDependencies=no\n")
    for name, text in units.items():
        path = folder / "units" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, text in files.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o600)
    flags = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "--mount-proc", "--kill-child")
    process = Child.start(["unshare", *flags, "sh", "-c", BOOT.format(folder=folder, systemd=SYSTEMD)])
    running = Systemd(process)
    try:
        running.wait_for_boot()
        yield running
    finally:
        # All processes of the namespace end with it.
        process.end()
