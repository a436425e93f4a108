"""Ports for tests that have to name one before anything listens there."""

from __future__ import annotations

import itertools
import os
import socket

# The kernel takes ports for connections and for port 0 from 32768 on; tests in Rust use those from 22000 on.
_FIRST, _EACH, _BLOCKS = 10_000, 1_500, 8
_numbers = itertools.count(os.getpid() * 7)


def free_port() -> int:
    """A free port of the loopback device that no concurrent test gets.

    Each worker of pytest has a block of ports of its own, and uses it in turn.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for _ in range(_EACH):
        port = _FIRST + worker % _BLOCKS * _EACH + next(_numbers) % _EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of the {_EACH} ports of worker {worker} is free")
