"""Processes that are forked from one that has imported torch: starting one takes milliseconds, not seconds.

They are real processes: they can be killed, they have their own environment and output, and they import the packages
under test themselves. What they do not test is the start of an interpreter, and its end after the exit functions, unless
``exits_fully`` is set. Tests of those start an interpreter; see :mod:`child`.
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from child import Child, inherited_environment
from fork_server import REQUEST_MAX
from ports import free_port

START_TIMEOUT_S = 120.0

# What torch imports when a model is trained, or with its first collective, takes as long as torch itself.
TORCH_MODULES = (
    *("numpy.random", "pytest", "torch", "torch._dynamo", "torch.distributed.fsdp"),
    *("torch.distributed.checkpoint", "torch.distributed.optim"),
)
# The server must have no other threads, and must not initialise CUDA: both do not survive a fork.
SERVER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
LEAN_MODULES = ("numpy.random", "pytest")


def torchrun_environments(world: int) -> list[dict[str, str]]:
    """The variables that torchrun sets for each rank of a world on one machine."""
    shared = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared} for rank in range(world)]


class ForkedProcess:
    """A process of a :class:`ForkServer`, with the methods of :class:`subprocess.Popen` that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._server.codes.get(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when the process has ended."""
        with self._server.changed:
            self._server.changed.wait_for(lambda: self.poll() is not None or self._server.is_over, timeout)
            code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("forked process", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, if it still runs."""
        with self._server.changed:
            # It may have ended, and its exit code be on its way.
            with suppress(ProcessLookupError):
                if self.poll() is None:
                    os.kill(self.pid, number)


class ForkServer:
    """The process that others are forked from, after it has imported these modules (those that are installed)."""

    def __init__(self, *modules: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = Path(__file__).with_name("fork_server.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**inherited_environment(), **SERVER_ENVIRONMENT},
                start_new_session=True,
            )
        self.changed = threading.Condition()
        self.codes: dict[int, int] = {}
        """Exit codes by process id."""
        self.is_over = False
        self._keys = itertools.count()
        self._started: dict[int, int] = {}
        threading.Thread(target=self._receive, daemon=True).start()

    def run_program(
        self,
        program: str | Path,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        exits_fully: bool = False,
    ) -> Child:
        """Starts a script (a path), or code (a text)."""
        words = ["forked", str(program), *map(str, arguments)]
        request = {"program": program, "arguments": words[2:]}
        return self._start(words, request, {**inherited_environment(), **(env or {})}, exits_fully)

    def call_function(
        self,
        module: Path,
        function: str,
        arguments: tuple[Any, ...],
        outcome: Path,
        env: Mapping[str, str],
        exits_fully: bool = False,
    ) -> Child:
        """Calls a function of a module of tests in a process with this environment; see :mod:`fork_server`."""
        request = {"module": module, "function": function, "outcome": outcome}
        request["arguments"] = pickle.dumps(arguments)
        return self._start(["forked", f"{module.name}:{function}"], request, env, exits_fully)

    def close(self) -> None:
        """Ends the server and all its processes."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait(30)
            self._socket.close()

    def _start(
        self, words: list[str], request: dict[str, Any], env: Mapping[str, str], exits_fully: bool
    ) -> Child:
        key = next(self._keys)
        message = pickle.dumps({**request, "env": dict(env), "exits_fully": exits_fully, "key": key})
        assert len(message) <= REQUEST_MAX, (
            f"a request of {len(message)} bytes: pass large arguments by a file"
        )
        output, theirs = os.pipe()
        try:
            with self.changed:
                socket.send_fds(self._socket, [message], [theirs])
                self.changed.wait_for(lambda: key in self._started or self.is_over, START_TIMEOUT_S)
                assert key in self._started, "the fork server has failed"
                process = ForkedProcess(self, self._started.pop(key))
        finally:
            os.close(theirs)
        return Child(words, process, output)

    def _receive(self) -> None:
        while message := self._socket.recv(4096):
            answer = pickle.loads(message)
            with self.changed:
                if "ended" in answer:
                    self.codes[answer["ended"]] = answer["code"]
                else:
                    # Process ids are used again.
                    self.codes.pop(answer["started"], None)
                    self._started[answer["key"]] = answer["started"]
                self.changed.notify_all()
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
