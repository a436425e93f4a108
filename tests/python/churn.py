"""Peers come and go while the others reduce on one thread and vote on another; nothing may drift, hang or fail.

    python churn.py --seconds 600 --peers 6

The parent runs a master and keeps up to so many peers alive: it kills them with SIGKILL at random, and starts new ones.
Every peer checks each result, and that its shared state never differs from the others' after its first sync.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import pccl

TENSORS = 4
ELEMENTS = 20_000


class Peer:
    """One peer: its main thread votes, a second one reduces."""

    def __init__(self, address: str, stop: Path) -> None:
        self.stop = stop
        self.comm = pccl.Communicator(address)
        self.total = numpy.zeros(ELEMENTS, numpy.float64)
        self.state = pccl.SharedState([pccl.TensorInfo.from_numpy(self.total, "total")])
        self.steps = 0
        self.again = 0

    def run(self) -> None:
        self.comm.connect(n_attempts=30)
        while True:
            while self.comm.world_size < 2:
                if self.stop.exists():
                    return
                self.vote(self.comm.update_topology)
                time.sleep(0.01)
            info = self.synced()
            if self.steps > 0 and info is not None:
                assert info.rx_bytes == 0, f"the state drifted: {info}"
            if info is None:
                continue
            marker(self.stop, os.getpid()).touch()
            tensors = [numpy.full(ELEMENTS, 1.0) for _ in range(TENSORS)]
            tensors[0][0] = float(self.stop.exists())
            worker = Worker(self, tensors)
            worker.start()
            pending = self.vote(self.comm.are_peers_pending)
            worker.join()
            if worker.error is not None:
                raise worker.error
            if not worker.is_alone:
                for tensor, world in zip(tensors, worker.worlds, strict=True):
                    assert (tensor[1:] == world).all(), (tensor[:4], world)
                self.total += tensors[1] / worker.worlds[1]
                self.state.push_revision()
                self.steps += 1
                if tensors[0][0] > 0:
                    return
            if pending or worker.is_alone:
                self.vote(self.comm.update_topology)

    def synced(self) -> pccl.SharedStateSyncInfo | None:
        """Syncs the state. None if the peers that held it are gone: update the topology first."""
        try:
            return self.comm.sync_shared_state(self.state)
        except pccl.PCCLError as error:
            if not error.is_retryable:
                raise
            self.again += 1
            self.vote(self.comm.update_topology)
            return None

    def vote(self, call):  # type: ignore[no-untyped-def]
        while True:
            try:
                return call()
            except pccl.PCCLError as error:
                if not error.is_retryable:
                    raise
                self.again += 1


class Worker(threading.Thread):
    """Reduces all tensors, each under its tag, in random order, and retries what failed."""

    def __init__(self, peer: Peer, tensors: list[numpy.ndarray]) -> None:
        super().__init__()
        self.peer = peer
        self.tensors = tensors
        self.worlds = [0] * len(tensors)
        self.is_alone = False
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.reduce()
        except pccl.PCCLError as error:
            if error.result is pccl.Result.TOO_FEW_PEERS:
                self.is_alone = True
            else:
                self.error = error
        except Exception as error:  # noqa: BLE001, raised again by the main thread
            self.error = error

    def reduce(self) -> None:
        left = list(range(len(self.tensors)))
        while left:
            random.shuffle(left)
            handles = {}
            for tag in left:
                try:
                    handles[tag] = self.peer.comm.all_reduce_async(
                        self.tensors[tag], self.tensors[tag], tag=tag
                    )
                except pccl.PCCLError as error:
                    if error.result is not pccl.Result.TOO_FEW_PEERS or not handles:
                        raise
            for tag, handle in handles.items():
                is_success, _, info = handle.wait(120)
                if is_success:
                    self.worlds[tag] = info.world_size
                    left.remove(tag)
                elif handle.error is not None and not handle.error.is_retryable:
                    raise handle.error
                else:
                    self.peer.again += 1


def marker(stop: Path, pid: int) -> Path:
    """The file that says that a peer has the state."""
    return stop.with_name(f"synced-{pid}")


def memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


class Churn:
    """The parent: a master, and processes that come and go."""

    def __init__(self, seconds: float, peers: int, seed: int) -> None:
        self.seconds, self.peers = seconds, peers
        self.random = random.Random(seed)
        self.folder = tempfile.TemporaryDirectory()
        self.stop = Path(self.folder.name) / "stop"
        self.children: list[subprocess.Popen[str]] = []
        self.kills = self.joins = 0
        self.grown: dict[int, int] = {}

    def start(self, address: str) -> None:
        words = [sys.executable, __file__, "--peer", address, "--stop-file", str(self.stop)]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.children.append(child)
        self.joins += 1

    def fallen(self) -> str | None:
        """The output of a peer that ended by itself."""
        for child in self.children:
            if child.poll() is not None:
                out = child.stdout.read() if child.stdout else ""
                return f"a peer ended with {child.returncode}:\n{out}"
        return None

    def run(self) -> int:
        with pccl.MasterNode("127.0.0.1:0") as master:
            try:
                return self.drive(master.address)
            finally:
                for child in self.children:
                    child.kill()
                    child.wait()

    def drive(self, address: str) -> int:
        began = reported = time.monotonic()
        first: dict[int, int] = {}
        seen: set[int] = set()
        while time.monotonic() - began < self.seconds:
            if (words := self.fallen()) is not None:
                print(words)
                return 1
            if len(self.children) < self.peers and self.random.random() < 0.5:
                self.start(address)
            elif len(self.children) > 2 and self.random.random() < 0.4:
                victim = self.random.choice(self.children)
                others = [child for child in self.children if child is not victim]
                # A state that nobody has any more cannot be synced.
                if any(marker(self.stop, child.pid).exists() for child in others):
                    self.children = others
                    victim.send_signal(signal.SIGKILL)
                    victim.wait()
                    self.kills += 1
            time.sleep(self.random.uniform(0.1, 0.8))
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                for child in self.children:
                    # A process that is seen for the first time may still be importing.
                    if child.pid in seen:
                        first.setdefault(child.pid, memory_kib(child.pid))
                        self.grown[child.pid] = memory_kib(child.pid) - first[child.pid]
                    seen.add(child.pid)
                print(f"{reported - began:.0f} s: {self.joins} joined, {self.kills} killed", flush=True)
        self.stop.touch()
        steps = again = 0
        for child in self.children:
            try:
                out, _ = child.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                print(f"peer {child.pid} does not end")
                return 1
            if child.returncode != 0:
                print(f"a peer ended with {child.returncode}:\n{out}")
                return 1
            # Before it there may be warnings.
            words = out.splitlines()[-1].split()
            steps, again = max(steps, int(words[1])), again + int(words[3])
        self.children.clear()
        grown = max(self.grown.values(), default=0)
        print(
            f"{self.joins} joined, {self.kills} killed, {steps} steps of one peer, {again} calls made again"
        )
        print(f"memory of a peer grew by {grown} KiB at most; nothing drifted")
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--peers", type=int, default=5)
    parser.add_argument("--seed", type=int, default=os.getpid())
    parser.add_argument("--peer", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--stop-file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer is None:
        return Churn(arguments.seconds, arguments.peers, arguments.seed).run()
    peer = Peer(arguments.peer, arguments.stop_file)
    peer.run()
    print(f"steps {peer.steps} again {peer.again}")
    peer.comm.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
