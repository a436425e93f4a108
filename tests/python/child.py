"""A process that a test starts. Every wait for it has a deadline, and it is killed when the test is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from blocked import wait_until_blocked

# Settings of the user that must not affect the tests.
HIDDEN = (
    "RINGFOLD_CONFIG",
    "RINGFOLD_LOG",
    "PCCL_LOG_LEVEL",
    "RINGFOLD_JOIN_TOKEN",
    "RINGFOLD_JOIN_TOKEN_FILE",
    "PCCL_JOIN_TOKEN",
    "PCCL_JOIN_TOKEN_FILE",
    "RINGFOLD_MASTERS",
)


class Process(Protocol):
    """What :class:`Child` uses of a :class:`subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int) -> None: ...


class Child:
    """A running process and what it has printed so far, standard error included."""

    def __init__(self, words: Sequence[str | Path], process: Process, output: int) -> None:
        self.words = [str(word) for word in words]
        self._process = process
        self._output = output
        self._printed = bytearray()
        self._changed = threading.Condition()
        self._is_closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, words: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Child:
        """Starts a program."""
        output, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                [str(word) for word in words],
                env={**inherited_environment(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=subprocess.STDOUT,
                # Its own children can be killed with it, and a Ctrl-C of the terminal does not reach it.
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        return cls(words, process, output)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has printed so far."""
        with self._changed:
            return self._printed.decode(errors="replace")

    def wait(self, timeout: float) -> int:
        """Waits for its exit code (minus the signal's number if a signal ended it) and all its output."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self} has not ended within {timeout} s; it printed:\n{self.output}"
            ) from None
        # A process that it left behind may hold its output open.
        self._reader.join(5)
        return code

    def succeed(self, timeout: float) -> str:
        """Waits until it exits with code 0. Returns its output."""
        code = self.wait(timeout)
        assert code == 0, f"{self} ended with exit code {code}; it printed:\n{self.output}"
        return self.output

    def wait_for(self, text: str, timeout: float) -> str:
        """The first whole line that contains this text."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                printed = self._printed.decode(errors="replace")
                whole = printed if self._is_closed else printed[: printed.rfind("\n") + 1]
                for line in whole.splitlines():
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                why = "ended" if self._is_closed else f"took more than {timeout} s" if left <= 0 else None
                assert why is None, f"{self} {why} without a line with {text!r}; it printed:\n{printed}"
                self._changed.wait(left)

    def wait_until_blocked(self) -> None:
        """Waits until its main thread sleeps in a call that waits."""
        wait_until_blocked(self.pid)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL. The process has ended when this returns."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def end(self) -> None:
        """Kills it and its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()
        self._reader.join(5)

    def __str__(self) -> str:
        words = [word if len(word) < 60 else f"{word[:57].splitlines()[0]}..." for word in self.words]
        return f"process {self.pid} ({' '.join(words)})"

    def _read(self) -> None:
        while part := os.read(self._output, 1 << 16):
            with self._changed:
                self._printed += part
                self._changed.notify_all()
        os.close(self._output)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def inherited_environment() -> dict[str, str]:
    """The environment of the tests without the user's settings; output is not buffered, and crashes print a stack."""
    inherited = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return {**inherited, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def python(script_or_code: str | Path, *arguments: object) -> list[str]:
    """The command line that runs a script, or code, with the interpreter of the tests."""
    text = str(script_or_code)
    is_script = isinstance(script_or_code, Path) or (text.endswith(".py") and "\n" not in text)
    return [sys.executable, *([text] if is_script else ["-c", text]), *map(str, arguments)]


class Spawn(Protocol):
    """Starts a script, or code, with the interpreter that runs the tests."""

    def __call__(
        self, script_or_code: str | Path, *arguments: object, env: Mapping[str, str] | None = None
    ) -> Child: ...


class Start(Protocol):
    """Starts a program."""

    def __call__(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Child: ...
