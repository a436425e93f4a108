"""Replicas that come and go: ringfold.torch.elastic beside torchft, with the same model and the same kills.

    python bench/elastic_beside_torchft.py
    python bench/elastic_beside_torchft.py --only ringfold --seconds 30 --kill-every 5 --json figures.json

Each system trains the same model with the same batch on replicas of one host, one thread each:

1. Without faults, beside static DDP over the same transport: elastic Ringfold beside DDP with the backend "ringfold", torchft beside
   DDP with Gloo. All of them are started at once; then they make their steps in turns, so that other load on the machine affects all.
2. With faults: a replica is killed (SIGKILL) every --kill-every seconds and started again --restart-after seconds later. A kill waits
   until all replicas take part again, unless --regardless is given: on a slow machine all replicas with the state could be killed
   before the first new one has it.

It prints, per system:

- the steps that the run finished within --seconds;
- the time lost per kill: how much longer than two median steps the survivors needed for the first two steps that were committed
  after it (two, because the killed replica may have given its part of the first). Kills while a replica was still missing do not count
  here: too few replicas may have been left, and then the run waits for the missing one;
- the time of a join: from the call that creates the run (`elastic.join`, `torchft.Manager`), after imports and with a model that is
  ready, to the first committed step of the new process; and the same from the start of the process;
- whether all replicas end with the same bits: SHA-256 of parameters and optimiser state.

A step counts as committed when the optimiser's own step has run.

torchft uses ProcessGroupGloo, its Manager (with the quorum during the forward pass, its default) and its DistributedDataParallel, and
is measured with two sets of settings:

- "torchft": what its README starts (quorum_tick_ms 100, join_timeout_ms 10000) with the lighthouse's default for the rest
  (heartbeat_timeout_ms 5000), and the Manager's defaults (a heartbeat each 100 ms, timeouts of 60 s);
- "torchft, fast": quorum_tick_ms 10, heartbeat_timeout_ms 500, a heartbeat each 50 ms, and a timeout of --torchft-timeout seconds for
  collectives. The last one matters with Gloo: only the neighbours of a killed replica in the ring see its connections end; another
  replica waits for this timeout, and its neighbours wait for it. The timeout of a quorum stays at 60 s, as a replica that reaches
  it ends; join_timeout_ms stays, as the first quorum has to wait for all replicas.

min_replicas is a majority of the replicas, as its documentation recommends; Ringfold's replicas_min is the same number. Where
torchft cannot be run, only Ringfold is measured, and the reason is printed. bench/README.md says how to install it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

# The time limit of everything that one phase waits for: a start of all replicas, a turn, an end.
PHASE_SECONDS = 180.0
# The longest time that a replica waits for a command.
IDLE_SECONDS = 1200.0
# How long before it the end of a run is announced, so that all replicas get the message before they are there.
NOTICE_SECONDS = 0.5
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class System:
    """A system under test, and how it is run."""

    name: str
    kind: str
    """The kind of replica: "elastic", "torchft", or "static" with a backend."""
    backend: str
    beside: str | None = None
    """The static system with the same transport."""
    tick_ms: int = 100
    heartbeat_timeout_ms: int = 5000
    heartbeat_ms: int = 100
    is_fast: bool = False

    @property
    def is_torchft(self) -> bool:
        return self.backend == "gloo"


STATIC_RINGFOLD = System("DDP, ringfold", "static", "ringfold")
STATIC_GLOO = System("DDP, gloo", "static", "gloo")
SYSTEMS = (
    System("ringfold", "elastic", "ringfold", STATIC_RINGFOLD.name),
    System("torchft", "torchft", "gloo", STATIC_GLOO.name),
    System("torchft, fast", "torchft", "gloo", STATIC_GLOO.name, 10, 500, 50, True),
)
BY_NAME = {system.name: system for system in (*SYSTEMS, STATIC_RINGFOLD, STATIC_GLOO)}


def main() -> int:
    options = _parsed()
    if options.replica is not None:
        Replica(options).train()
        return 0
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    why_not = None if options.only == "ringfold" else why_no_torchft(options.torchft_python)
    if why_not:
        print(f"torchft cannot run here: {why_not}", flush=True)
    systems = [
        system
        for system in SYSTEMS
        if options.only in (None, system.name.split(",")[0]) and not (system.is_torchft and why_not)
    ]
    if not systems:
        return 1
    figures: dict[str, Any] = {"options": vars(options), "why_no_torchft": why_not}
    try:
        if options.rounds > 0:
            figures["steps_ms"] = without_faults(options, systems)
            print_steps(figures["steps_ms"])
        if options.seconds > 0:
            figures["faults"] = {system.name: with_faults(options, system) for system in systems}
            print_faults(options, figures["faults"])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (RuntimeError, TimeoutError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _stop(*_: object) -> None:
    """Ends the program. Further signals, such as the second of two from `timeout`, do not interrupt the clean-up."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parsed() -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    add = parser.add_argument
    add("--only", choices=("ringfold", "torchft"), help="measure only this system (both)")
    add("--replicas", type=int, default=4, help="number of replicas (4)")
    add("--hidden", type=int, default=768, help="width of the four layers (768: 2.4 M parameters)")
    add("--batch", type=int, default=8, help="rows of data per replica and step (8)")
    add("--rounds", type=int, default=7, help="rounds without faults that count (7); 0 skips this part")
    add("--round-steps", type=int, default=30, help="steps of each system per round (30)")
    add("--seconds", type=float, default=60.0, help="time of each run with faults (60); 0 skips this part")
    add("--kill-every", type=float, default=10.0, help="seconds between kills (10)")
    add("--restart-after", type=float, default=1.0, help="seconds from a kill to the restart (1)")
    add("--regardless", action="store_true", help="kill also while another replica is on its way back")
    add("--json", metavar="FILE", help="write all figures to this file")
    add("--logs", metavar="DIR", help="keep what the replicas print in this directory")
    add("--torchft-timeout", type=float, default=2.0, help="of collectives in torchft's fast settings (2 s)")
    default = "~/.cache/ringfold/torchft-venv/bin/python"
    add("--torchft-python", default=default, help=f"the Python that has torchft ({default})")
    add("--replica", type=int, help=argparse.SUPPRESS)
    add("--system", help=argparse.SUPPRESS)
    add("--address", help=argparse.SUPPRESS)
    add("--events", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replicas < 2:
        parser.error(f"invalid --replicas {options.replicas}: must be at least 2")
    if options.kill_every <= options.restart_after:
        parser.error(f"invalid --kill-every {options.kill_every}: must be longer than --restart-after")
    return options


def replicas_min(replicas: int) -> int:
    """A majority, but one replica can always be lost."""
    return min(replicas // 2 + 1, replicas - 1)


def why_no_torchft(python: str) -> str | None:
    """The reason why torchft cannot be run; None if it can."""
    path = Path(python).expanduser()
    if not path.exists():
        return f"{path} does not exist"
    program = "from torchft import DistributedDataParallel, Manager, ProcessGroupGloo"
    try:
        run = subprocess.run(
            [path, "-c", program], check=False, env=_env(False), capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        return "its import took more than 120 s"
    if run.returncode:
        return (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    return None if _lighthouse(python).exists() else f"{_lighthouse(python)} does not exist"


def _lighthouse(python: str) -> Path:
    return Path(python).expanduser().parent / "torchft_lighthouse"


def _env(with_project: bool) -> dict[str, str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if not with_project:
        # torchft imports a package `torchcomms` if there is one, and must not get this project's.
        env.pop("PYTHONPATH", None)
    return env


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


# --- a replica ---------------------------------------------------------------------------------------------------------


class Commands:
    """What the parent says on standard input: "until N", a line each. The end of the input ends the run."""

    def __init__(self) -> None:
        self._until = 0
        self._buffer = b""
        self._is_ended = False

    def allow(self, step: int) -> bool:
        """Whether to make this step. Waits while its number is not yet allowed."""
        deadline = time.monotonic() + IDLE_SECONDS
        while True:
            patience = deadline - time.monotonic() if step >= self._until and not self._is_ended else 0.0
            if select.select([0], [], [], max(patience, 0.0))[0]:
                self._read()
            elif step >= self._until:
                return False
            if self._is_ended or step < self._until:
                return not self._is_ended

    def _read(self) -> None:
        chunk = os.read(0, 4096)
        self._is_ended = not chunk
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            self._until = int(line.split()[1])


class Replica:
    """One of the processes. Its events go to a file, a line each, with the time of CLOCK_MONOTONIC."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(options.replica)
        self.options = options
        self.system = BY_NAME[options.system]
        self._events = os.open(options.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.commands = Commands()
        logging.basicConfig(format=f"%(asctime)s {options.replica} %(name)s: %(message)s")
        logging.getLogger("ringfold").setLevel(logging.INFO)
        layers: list[Any] = []
        for _ in range(4):
            layers += [torch.nn.Linear(options.hidden, options.hidden), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers[:-1])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(options.batch, options.hidden)

    def train(self) -> None:
        """Until the parent says that it is enough."""
        train = {"elastic": self._elastic, "torchft": self._torchft, "static": self._static}[self.system.kind]
        leave = train()
        digest = hashlib.sha256()
        states = self.optimizer.state.values()
        for tensor in (*self.model.parameters(), *(value for state in states for value in state.values())):
            digest.update(tensor.detach().numpy().tobytes())
        self._event("end", digest.hexdigest())
        leave()

    def _event(self, *words: object) -> None:
        os.write(self._events, " ".join(map(str, (f"{time.monotonic():.6f}", *words))).encode() + b"\n")

    def _note_commits(self, number: Callable[[], int], world: Callable[[], int]) -> None:
        """From now on, each step of the optimiser is noted: the number of steps made, and the number of replicas."""

        def committed(*_: object) -> None:
            self._event("step", number(), world())

        self.optimizer.register_step_post_hook(committed)

    def _backward(self, model: Any) -> None:
        model(self.data).square().mean().backward()

    def _elastic(self) -> Callable[[], Any]:
        import ringfold.torch.elastic as elastic
        from torch.nn.parallel import DistributedDataParallel

        self._event("join")
        run = elastic.join(
            self.options.address,
            name=f"replica-{self.options.replica}",
            policy=elastic.Policy(replicas_min=replicas_min(self.options.replicas)),
        )
        model = DistributedDataParallel(self.model, process_group=run.replica_group)
        run.replicate(model, self.optimizer)
        self._note_commits(lambda: run.step + 1, lambda: run.world_size)
        for step, _ in run.batches(repeat(None)):
            if not self.commands.allow(step):
                break
            self.optimizer.zero_grad()
            self._backward(model)
            self.optimizer.step()
        return run.leave

    def _torchft(self) -> Callable[[], Any]:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
        from torchft import (  # type: ignore[import-not-found]
            DistributedDataParallel,
            Manager,
            ProcessGroupGloo,
        )

        patient = timedelta(seconds=60)
        timeout = timedelta(seconds=self.options.torchft_timeout) if self.system.is_fast else patient
        # Usually torchrun's, and there before the training script starts.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

        def load(state: dict[str, Any]) -> None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

        self._event("join")
        manager = Manager(
            pg=ProcessGroupGloo(timeout=timeout),
            load_state_dict=load,
            state_dict=lambda: {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()},
            min_replica_size=replicas_min(self.options.replicas),
            timeout=timeout,
            quorum_timeout=patient,
            connect_timeout=patient,
            heartbeat_interval=timedelta(milliseconds=self.system.heartbeat_ms),
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=store.port,
            lighthouse_addr=f"http://{self.options.address}",
            replica_id=f"replica-{self.options.replica}",
            hostname="127.0.0.1",
        )
        model = DistributedDataParallel(manager, self.model)
        self._note_commits(manager.current_step, manager.num_participants)
        while self.commands.allow(manager.current_step()):
            # What its optimiser wrapper does.
            manager.start_quorum()
            self.optimizer.zero_grad()
            self._backward(model)
            if manager.should_commit():
                self.optimizer.step()
        return lambda: manager.shutdown(wait=False)

    def _static(self) -> Callable[[], Any]:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        if self.system.backend == "ringfold":
            import ringfold.torch  # noqa: F401  (registers the backend)

        dist.init_process_group(
            self.system.backend,
            init_method=f"tcp://{self.options.address}",
            rank=self.options.replica,
            world_size=self.options.replicas,
            timeout=timedelta(seconds=PHASE_SECONDS),
        )
        model = DistributedDataParallel(self.model)
        made = 0
        self._note_commits(lambda: made + 1, dist.get_world_size)
        while self.commands.allow(made):
            self.optimizer.zero_grad()
            self._backward(model)
            self.optimizer.step()
            made += 1
        return dist.destroy_process_group


# --- the parent --------------------------------------------------------------------------------------------------------


class Process:
    """A replica as the parent sees it."""

    def __init__(self, command: list[str], env: dict[str, str], events: Path, output: int | None) -> None:
        self.started = time.monotonic()
        self._path = events
        # A group of its own, so that Ctrl-C reaches the parent only, which ends the replicas.
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=output, stderr=output, process_group=0
        )

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def end_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.end_input()

    @property
    def has_failed(self) -> bool:
        return self._process.poll() not in (None, 0)

    def events(self, kind: str) -> list[list[str]]:
        """The words of all events of a kind, with their time first."""
        lines = self._path.read_text().split("\n")[:-1] if self._path.exists() else []
        return [words for words in map(str.split, lines) if words[1] == kind]

    def commits(self) -> list[tuple[float, int, int]]:
        """Time, number and replicas of each committed step."""
        return [(float(at), int(number), int(world)) for at, _, number, world in self.events("step")]

    def time_of(self, kind: str) -> float | None:
        events = self.events(kind)
        return float(events[0][0]) if events else None

    @property
    def last(self) -> tuple[int, int]:
        """The number and the replicas of the last commit. Cheap, since it is asked for often."""
        if not self._path.exists():
            return 0, 0
        with self._path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 256))
            lines = file.read().split(b"\n")[:-1]
        words = next((words for words in map(bytes.split, reversed(lines)) if words[1:2] == [b"step"]), None)
        return (int(words[2]), int(words[3])) if words else (0, 0)


class Job:
    """All replicas of one system, with its master, lighthouse or none."""

    def __init__(self, options: argparse.Namespace, system: System, directory: Path) -> None:
        self.options, self.system = options, system
        self._directory = directory
        self.until = 0
        self._master: Any = None
        self._lighthouse: subprocess.Popen[bytes] | None = None
        self._address = f"127.0.0.1:{_free_port()}"
        self.history: list[Process] = []
        self.current: list[Process] = []
        self._slug = system.name.replace(", ", "-")
        self._log: int | None = None

    def start(self) -> None:
        """Starts all processes, waits until all replicas take part, and lets them wait before the same step."""
        if self.options.logs:
            path = Path(self.options.logs) / f"{self._slug}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if self.system.kind == "elastic":
            # Lost connections are what is tested here.
            os.environ.setdefault("RINGFOLD_LOG", "error")
            import pccl

            self._master = pccl.MasterNode("127.0.0.1:0")
            self._master.run()
            self._address = self._master.address
        elif self.system.kind == "torchft":
            self._start_lighthouse()
        self.current = [self._start(number) for number in range(self.options.replicas)]
        self.allow(1 << 60)
        self.wait("a step of all replicas", self._has_all)
        self.halt()

    def _start_lighthouse(self) -> None:
        settings = {
            "bind": self._address,
            "min_replicas": replicas_min(self.options.replicas),
            "join_timeout_ms": 10_000,
            "quorum_tick_ms": self.system.tick_ms,
            "heartbeat_timeout_ms": self.system.heartbeat_timeout_ms,
        }
        command = [str(_lighthouse(self.options.torchft_python))]
        command += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        output = subprocess.DEVNULL if self._log is None else self._log
        self._lighthouse = subprocess.Popen(
            command, env=_env(False), stdout=output, stderr=output, process_group=0
        )

    def _start(self, number: int) -> Process:
        events = self._directory / f"{self._slug}-{len(self.history)}"
        own = Path(self.options.torchft_python).expanduser() if self.system.is_torchft else sys.executable
        same = ("replicas", "hidden", "batch", "torchft_timeout")
        command = [str(own), __file__, "--replica", str(number), "--system", self.system.name]
        command += ["--address", self._address, "--events", str(events)]
        command += [
            word
            for name in same
            for word in (f"--{name.replace('_', '-')}", str(getattr(self.options, name)))
        ]
        output = subprocess.DEVNULL if self._log is None else self._log
        process = Process(command, _env(not self.system.is_torchft), events, output)
        process.say(f"until {self.until}\n")
        self.history.append(process)
        return process

    def allow(self, until: int) -> None:
        """Lets all replicas make the steps up to this number."""
        self.until = until
        for process in self.current:
            process.say(f"until {until}\n")

    def kill(self, number: int) -> float:
        """Kills a replica. Returns when."""
        at = time.monotonic()
        self.current[number].kill()
        return at

    def restart(self, number: int) -> Process:
        self.current[number] = self._start(number)
        return self.current[number]

    def wait(self, what: str, is_there: Callable[[Process], bool]) -> None:
        """Waits until this holds for all replicas."""
        deadline = time.monotonic() + PHASE_SECONDS
        while not all(map(is_there, self.current)):
            if any(process.has_failed for process in self.current):
                raise RuntimeError(f"{self.system.name}: a replica failed; --logs DIR keeps what it prints")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.system.name}: timed out after {PHASE_SECONDS:.0f} s waiting for {what}"
                )
            time.sleep(0.02)

    def halt(self) -> None:
        """Lets all replicas wait before the same step, soon."""
        last = [at for at, *_ in self.current[0].commits()[-1000:]]
        recent = sum(at > last[-1] - NOTICE_SECONDS for at in last)
        self.allow(max(process.last[0] for process in self.current) + 5 + recent)
        self.wait("the last step", self.is_done)

    def _has_all(self, process: Process) -> bool:
        replicas: int = self.options.replicas
        return process.last[1] == replicas

    def is_complete(self) -> bool:
        """Whether all replicas take part."""
        return all(map(self._has_all, self.current))

    def is_done(self, process: Process) -> bool:
        """Whether a replica has made all steps that are allowed."""
        return process.last[0] >= self.until

    def end(self) -> list[str]:
        """Lets all replicas end after the same step. Returns the digests of their states."""
        self.halt()
        for process in self.current:
            process.end_input()
        self.wait("the ends", lambda process: bool(process.events("end")))
        return [process.events("end")[0][2] for process in self.current]

    def close(self) -> None:
        for process in self.history:
            process.kill()
        if self._lighthouse is not None:
            self._lighthouse.kill()
            self._lighthouse.wait()
        if self._master is not None:
            self._master.interrupt()
            self._master.wait()
        if self._log is not None:
            os.close(self._log)


@contextlib.contextmanager
def jobs_of(options: argparse.Namespace, systems: list[System]) -> Iterator[list[Job]]:
    """Starts the systems, and ends them whatever happens."""
    jobs: list[Job] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for system in systems:
                print(f"starting {system.name}", file=sys.stderr, flush=True)
                jobs.append(Job(options, system, Path(directory)))
                # One after the other: they would disturb each other, and timeouts are short.
                jobs[-1].start()
            yield jobs
        finally:
            for job in jobs:
                job.close()


def without_faults(options: argparse.Namespace, systems: list[System]) -> dict[str, list[float]]:
    """The medians of each round, in milliseconds per step, of all systems and the static ones beside them."""
    statics = [BY_NAME[name] for name in dict.fromkeys(system.beside for system in systems) if name]
    medians: dict[str, list[float]] = {}
    with jobs_of(options, [*statics, *systems]) as jobs:
        for turn in range(options.rounds + 1):
            print(f"round {turn} of {options.rounds}", file=sys.stderr, flush=True)
            for job in jobs:
                job.allow(job.until + options.round_steps)
                job.wait("the steps of a round", job.is_done)
                if turn == 0:
                    continue
                commits = [at for at, *_ in job.current[0].commits()[-options.round_steps :]]
                gaps = [after - before for before, after in pairwise(commits)]
                medians.setdefault(job.system.name, []).append(statistics.median(gaps) * 1e3)
    return medians


def with_faults(options: argparse.Namespace, system: System) -> dict[str, Any]:
    """A run with kills."""
    with jobs_of(options, [system]) as (job,):
        first = list(job.current)
        job.allow(1 << 60)
        print(f"{system.name}: {options.seconds:g} s with faults", file=sys.stderr, flush=True)
        began = time.monotonic()
        kills: list[Kill] = []
        joins: list[Process] = []
        last_kill = began + options.seconds - max(options.kill_every / 2, options.restart_after)
        while True:
            victim = len(kills) % options.replicas
            _sleep_until(began + (len(kills) + 1) * options.kill_every)
            while not (is_complete := job.is_complete()) and not options.regardless:
                if time.monotonic() > last_kill:
                    break
                time.sleep(0.02)
            if time.monotonic() > last_kill:
                break
            survivors = [process for process in job.current if process is not job.current[victim]]
            kills.append(Kill(job.kill(victim), survivors, is_complete))
            _sleep_until(kills[-1].at + options.restart_after)
            joins.append(job.restart(victim))
        _sleep_until(began + options.seconds)
        ended = time.monotonic()
        # A replica that is still on its way takes part in the comparison.
        job.wait("the last join", lambda process: bool(process.commits()))
        digests = job.end()
        everyones = [process.commits() for process in job.history]
        made = max(number for commits in everyones for at, number, _ in commits if at <= ended)
        before = max(number for process in first for at, number, _ in process.commits() if at <= began)
        gaps = [after[0] - at[0] for commits in everyones for at, after in pairwise(commits)]
        median = statistics.median(gaps)
        return {
            "seconds": ended - began,
            "steps": made - before,
            "median_step_s": median,
            "kills": len(kills),
            "lost_s": [kill.lost(median) for kill in kills if kill.is_complete],
            "join_s": [_first_commit(process) - (process.time_of("join") or 0.0) for process in joins],
            "join_from_start_s": [_first_commit(process) - process.started for process in joins],
            "same_bits": len(set(digests)) == 1,
            "digests": digests,
        }


@dataclass(frozen=True)
class Kill:
    """A replica was killed."""

    at: float
    survivors: list[Process]
    is_complete: bool
    """Whether all replicas took part before it."""

    def lost(self, median: float) -> float:
        """The time that the slowest survivor lost."""
        lost = [0.0]
        for process in self.survivors:
            commits = [at for at, *_ in process.commits()]
            before = max((at for at in commits if at <= self.at), default=self.at)
            after = [at for at in commits if at > self.at][:2]
            if after:
                lost.append(after[-1] - before - len(after) * median)
        return max(lost)


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def _first_commit(process: Process) -> float:
    commits = process.commits()
    return commits[0][0] if commits else float("nan")


def print_steps(steps: dict[str, list[float]]) -> None:
    print(
        f"\n{'without faults, ms per step':30} {'median':>9} {'least':>9} {'most':>9} {'over static DDP':>22}"
    )
    for name, medians in steps.items():
        median = statistics.median(medians)
        beside = BY_NAME[name].beside
        over = ""
        if beside in steps:
            # Pairs of the same round.
            less = statistics.median(a - b for a, b in zip(medians, steps[beside], strict=True))
            over = f"{less:+.2f} ({less / statistics.median(steps[beside]) * 100:+.0f} %)"
        print(f"{name:30} {median:9.2f} {min(medians):9.2f} {max(medians):9.2f} {over:>22}")


def print_faults(options: argparse.Namespace, faults: dict[str, dict[str, Any]]) -> None:
    print(f"\n{f'a kill each {options.kill_every:g} s':46}" + "".join(f"{name:>18}" for name in faults))

    def row(title: str, value: Callable[[dict[str, Any]], str]) -> None:
        print(f"{title:46}" + "".join(f"{value(each):>18}" for each in faults.values()))

    row(f"steps in {options.seconds:g} s", lambda each: str(each["steps"]))
    row("median step, ms", lambda each: f"{each['median_step_s'] * 1e3:.1f}")
    row("kills", lambda each: str(each["kills"]))
    row("kills with all replicas there", lambda each: str(len(each["lost_s"])))
    for title, key in (
        ("lost per kill, ms", "lost_s"),
        ("join, ms", "join_s"),
        ("join from the process's start, ms", "join_from_start_s"),
    ):
        row(f"{title}: median", lambda each, key=key: _ms(each[key], statistics.median))  # type: ignore[misc]
        row(f"{title}: worst", lambda each, key=key: _ms(each[key], max))  # type: ignore[misc]
    row("same bits at the end", lambda each: "yes" if each["same_bits"] else "NO")


def _ms(values: list[float], of: Callable[[list[float]], float]) -> str:
    return f"{of(values) * 1e3:.0f}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
