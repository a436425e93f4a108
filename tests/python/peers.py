"""Peers within one process, on threads where their calls wait for each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pccl
from blocked import wait_until_blocked

# Several processes that import torch on a busy machine take their time.
DEADLINE = 120.0


class Call(Future[Any]):
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self._thread = threading.Thread(target=self._body, daemon=True)
        self._thread.start()

    def wait_until_blocked(self) -> None:
        """Waits until the call sleeps."""
        assert self._thread.native_id is not None
        wait_until_blocked(os.getpid(), self._thread.native_id)

    def _body(self) -> None:
        try:
            self.set_result(self._call())
        except BaseException as error:  # noqa: BLE001
            self.set_exception(error)


def begin(call: Callable[..., Any], *arguments: Any, **options: Any) -> Call:
    """Makes a call on a thread of its own."""
    return Call(partial(call, *arguments, **options))


def together(*calls: Callable[..., Any]) -> list[Any]:
    """Makes all calls at once. Returns their results, or raises an exception of one."""
    return [future.result(DEADLINE) for future in [begin(call) for call in calls]]


def outcomes(*calls: Callable[..., Any]) -> list[Any]:
    """As :func:`together`, but an exception takes the place of a result."""
    futures = [begin(call) for call in calls]
    return [future.exception(DEADLINE) or future.result() for future in futures]


def join(communicator: pccl.Communicator, world: int) -> pccl.Communicator:
    """Connects, and admits others until the world has this size."""
    communicator.connect()
    while communicator.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < world:
        communicator.update_topology()
    return communicator


@contextmanager
def connected(master: str, count: int = 2, **options: Any) -> Iterator[list[pccl.Communicator]]:
    """This many peers of one run, named a, b, c..."""
    peers = [pccl.Communicator(master, name=chr(ord("a") + i), **options) for i in range(count)]
    try:
        together(*(lambda peer=peer: join(peer, count) for peer in peers))
        yield peers
    finally:
        for peer in peers:
            peer.leave()
