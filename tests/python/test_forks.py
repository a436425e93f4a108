"""Forked processes behave as processes of their own; see forks.py."""

from __future__ import annotations

import os
import signal

import pytest
from forks import ForkServer

DEADLINE = 60.0


def test_a_forked_program_has_its_own_environment_arguments_and_output(lean_forks: ForkServer) -> None:
    code = "import os, sys; print(__name__, os.environ['COLOUR'], sys.argv, os.getpid())"
    children = [lean_forks.run_program(code, n, "x", env={"COLOUR": f"blue{n}"}) for n in range(3)]
    for number, child in enumerate(children):
        expected = f"__main__ blue{number} ['-c', '{number}', 'x'] {child.pid}\n"
        assert child.succeed(DEADLINE) == expected
    assert "COLOUR" not in os.environ


@pytest.mark.parametrize(
    ("code", "exit_code", "text"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('why')", 1, "why"),
        ("raise LookupError('mine')", 1, "LookupError: mine"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("import os; os.abort()", -signal.SIGABRT, "Fatal Python error: Aborted"),
    ],
)
@pytest.mark.parametrize("exits_fully", [False, True])
def test_a_forked_program_ends_as_one_of_its_own_interpreter(
    lean_forks: ForkServer, code: str, exit_code: int, text: str, exits_fully: bool
) -> None:
    child = lean_forks.run_program(code, exits_fully=exits_fully)
    assert child.wait(DEADLINE) == exit_code, child.output
    assert text in child.output and (text or not child.output)


def test_a_forked_program_can_be_killed_and_interrupted(lean_forks: ForkServer) -> None:
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        child = lean_forks.run_program("import signal; print('here'); signal.pause()")
        child.wait_for("here", DEADLINE)
        child.wait_until_blocked()
        child.signal(number)
        assert child.wait(DEADLINE) == -number


@pytest.mark.parametrize("exits_fully", [False, True])
def test_threads_and_exit_functions_of_a_forked_program_end_before_it(
    lean_forks: ForkServer, exits_fully: bool
) -> None:
    code = """
import atexit, threading, time
class Module:
    def __del__(self):
        print("torn down")
kept = Module()
atexit.register(lambda: print("exit function"))
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""
    expected = ["thread", "exit function", *(["torn down"] if exits_fully else [])]
    child = lean_forks.run_program(code, exits_fully=exits_fully)
    assert child.succeed(DEADLINE).splitlines() == expected
