"""Forks a process for each request, from one that has imported what the processes need. See :mod:`forks`.

    python fork_server.py SOCKET MODULE...

A request is one message on the socket, a pickled dictionary, and the descriptor that becomes the process's standard output
and error. The server answers with the process id, and sends the exit code when the process has ended. It ends, and its
processes with it, when the other end of the socket is closed.

The server has one thread and imports nothing of this repository, so each process imports the packages under test itself.
"""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import gc
import importlib
import importlib.util
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

REQUEST_MAX = 1 << 17
"""Bytes of the largest request."""


def main() -> None:
    """Serves until the other end of the socket is closed. Returns in each process that was forked."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        with suppress(ImportError):
            importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with several threads cannot be forked"
    # The processes' garbage collections leave alone what the server has made: that would copy its memory.
    gc.collect()
    gc.freeze()

    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_read, False)
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([requests, wakeup_read], [], [])
        if wakeup_read in ready:
            os.read(wakeup_read, 4096)
            _report_ended(requests, children)
        if requests not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_MAX, 1)
        if not message:
            break
        (output,) = descriptors
        request = pickle.loads(message)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (wakeup_read, wakeup_write, requests.detach()):
                os.close(descriptor)
            _serve_request(request, output)
            return
        with suppress(OSError):
            os.setpgid(pid, pid)
        os.close(output)
        children.add(pid)
        requests.send(pickle.dumps({"started": pid, "key": request["key"]}))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _report_ended(requests: socket.socket, children: set[int]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            with suppress(BrokenPipeError):
                requests.send(pickle.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}))


def _serve_request(request: dict[str, Any], output: int) -> None:
    """Does what was requested, in the forked process.

    An exception passes through, so the interpreter prints it and ends as it always does. Without one, the process ends
    as an interpreter does up to the exit functions, but does not take its modules apart: for torch that takes 0.8 s.
    ``exits_fully`` in the request asks for that too.
    """
    with suppress(OSError):
        os.setpgid(0, 0)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(request["env"])
    # Torch 2.15 has imported torchcomms, which reads this environment variable then.
    if "torchcomms._compile" in sys.modules:
        importlib.reload(sys.modules["torchcomms._compile"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    code = 0
    try:
        if "program" in request:
            _run_program(request["program"], request["arguments"])
        else:
            call_function(request["module"], request["function"], request["arguments"], request["outcome"])
    except SystemExit as exit:
        if exit.code is not None and not isinstance(exit.code, int):
            raise
        code = exit.code or 0
    if request["exits_fully"]:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _run_program(program: str | Path, arguments: list[str]) -> None:
    """Runs a script, or code, as the interpreter does that was started with it."""
    is_script = isinstance(program, Path)
    sys.argv = [str(program) if is_script else "-c", *arguments]
    sys.path[0] = str(program.parent) if isinstance(program, Path) else ""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if is_script:
        main.__dict__["__file__"] = str(program)
    sys.modules["__main__"] = main
    text = program.read_text() if isinstance(program, Path) else program
    exec(compile(text, str(program) if is_script else "<string>", "exec"), main.__dict__)


def call_function(module: Path, function: str, arguments: bytes, outcome: Path) -> None:
    """Calls a function of a module of tests. Leaves ("returned", value) or ("raised", text) in a file.

    The arguments are pickled: their classes may be those of the module. Exits with code 1 if the function raised.
    """
    result: tuple[str, Any]
    try:
        call = getattr(_loaded(module), function)
        result = ("returned", call(*pickle.loads(arguments)))
    except BaseException as error:
        traceback.print_exc()
        result = ("raised", f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    temporary = outcome.with_suffix(".new")
    temporary.write_bytes(pickle.dumps(result))
    temporary.rename(outcome)
    if result[0] == "raised":
        sys.exit(1)


def _loaded(path: Path) -> ModuleType:
    """The module at this path, under the name that pytest gives it."""
    # As in pytest, modules of the folders above can be imported, too.
    tests = Path(__file__).parent
    for folder in reversed([path.parent, *path.parent.parents]):
        if folder == tests or tests in folder.parents:
            sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
