"""A real Slurm of one node, in a directory of its own: munge, slurmctld and slurmd."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from child import Child, inherited_environment
from ports import free_port
from variants import is_long

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
# Without cgroups, so that it also runs in a container. The node has more processors than the machine may have.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1
SlurmdParameters=config_overrides
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 CoresPerSocket=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster that runs."""

    def __init__(self, folder: Path, daemons: list[Child]) -> None:
        self.folder, self.daemons = folder, daemons
        self.host = socket.gethostname().partition(".")[0]

    def run(self, *words: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command of Slurm."""
        variables = {**inherited_environment(), "SLURM_CONF": str(self.folder / "slurm.conf"), **(env or {})}
        command = [str(word) for word in words]
        return subprocess.run(command, check=False, env=variables, capture_output=True, text=True, timeout=60)

    def call(self, *words: object, env: Mapping[str, str] | None = None) -> str:
        """What a command of Slurm prints, which has to succeed."""
        done = self.run(*words, env=env)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    def is_idle(self) -> bool:
        """Whether the node is there, and has no jobs."""
        return self.run("sinfo", "-h", "-o%T").stdout.strip() == "idle"

    def wait_until(self, what: str, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            logs = "\n".join(each.output[-2000:] for each in self.daemons)
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}; the daemons printed\n{logs}"
            time.sleep(0.1)

    def start_requeued(self, job: str) -> None:
        """Starts a job that was requeued; Slurm itself does that after two minutes."""
        self.wait_until(
            "the job is in the queue", lambda: "PENDING" in self.call("squeue", "-hj", job, "-o%T"), 60
        )
        # What is started within the second in which the last start was ended is refused: "Job credential revoked".
        time.sleep(2)
        self.call("scontrol", "update", f"JobId={job}", "StartTime=now")


@contextmanager
def slurm() -> Iterator[Slurm]:
    """A cluster of one node; skips the test where it cannot run."""
    if not is_long():
        pytest.skip("the long variant: needs Slurm")
    missing = [
        program
        for program in PROGRAMS
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None
    ]
    if missing or os.geteuid() != 0:
        pytest.skip(f"{missing[0]} is not installed (Debian: slurm-wlm)" if missing else "slurmd needs root")
    folder = Path(tempfile.mkdtemp(prefix="rf-slurm-", dir="/tmp"))  # Paths of sockets have to be short.
    folder.chmod(0o755)
    daemons: list[Child] = []
    cluster = Slurm(folder, daemons)
    try:
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(64))
        values = {"host": cluster.host, "folder": folder, "controller": free_port(), "node": free_port()}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        daemons.append(
            Child.start(["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *munge])
        )
        cluster.wait_until("munge listens", (folder / "munge.sock").exists, 30)
        daemons.append(Child.start(["slurmctld", "-D", "-c", "-f", folder / "slurm.conf"]))
        daemons.append(Child.start(["slurmd", "-D", "-f", folder / "slurm.conf"]))

        cluster.wait_until("the node is idle", cluster.is_idle, 60)
        yield cluster
        # Jobs are not children of the daemons.
        cluster.call("scancel", "--user=root")
        cluster.wait_until("no job is left", lambda: not cluster.call("squeue", "-h"), 60)
    finally:
        for daemon in reversed(daemons):
            daemon.end()
        shutil.rmtree(folder, ignore_errors=True)
