"""Where ranks come from: a process that has imported torch once, and is forked for each rank.

Run as a program by :mod:`ranks`, which talks to it over a socket: one line of JSON per rank to start, and one line back
when it runs, and one when it has ended. A rank is an ordinary process: it ends as any interpreter does.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Serves until the tests' end of the socket is closed."""
    line = socket.socket(fileno=int(sys.argv[1]))
    import torch  # noqa: F401  (what takes so long)

    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    unread = b""
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(line, children)
        if line not in ready:
            continue
        part = line.recv(1 << 16)
        if not part:
            break
        *orders, unread = (unread + part).split(b"\n")
        for order in map(json.loads, orders):
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (woken, wake, line.detach()):
                    os.close(fd)
                _be_rank(order)
                return
            children.add(pid)
            line.sendall(json.dumps({"key": order["key"], "pid": pid}).encode() + b"\n")
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _report_ended(line: socket.socket, children: set[int]) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            line.sendall(json.dumps({"ended": pid, "code": code}).encode() + b"\n")


def _be_rank(order: dict[str, Any]) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(order["env"])
    function, arguments = pickle.loads(bytes.fromhex(order["arguments"]))
    outcome: tuple[str, Any]
    try:
        outcome = ("returned", getattr(_module(Path(order["module"])), function)(*arguments))
    except BaseException as error:
        traceback.print_exc()
        outcome = ("raised", f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    temporary = Path(f"{order['outcome']}.new")
    temporary.write_bytes(pickle.dumps(outcome))
    temporary.rename(order["outcome"])
    sys.stdout.flush()


def _module(path: Path) -> ModuleType:
    for folder in (path.parent.parent, path.parent):
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
