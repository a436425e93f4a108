"""Peers within one process: threads of their own where they have to call together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pccl

# Several processes that import torch on a busy machine take their time.
DEADLINE = 120.0


def begin(call: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
    """Makes a call on a thread of its own."""
    future: Future[Any] = Future()

    def body() -> None:
        try:
            future.set_result(call(*arguments, **options))
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return future


def together(*calls: Callable[..., Any]) -> list[Any]:
    """Makes all calls at once, and gives what they return; an exception is raised."""
    return [future.result(DEADLINE) for future in [begin(call) for call in calls]]


def outcomes(*calls: Callable[..., Any]) -> list[Any]:
    """As :func:`together`, but an exception is what it returned."""
    futures = [begin(call) for call in calls]
    return [future.exception(DEADLINE) or future.result() for future in futures]


def join(communicator: pccl.Communicator, world: int) -> pccl.Communicator:
    """Connects, and lets others in until there are so many."""
    communicator.connect()
    while communicator.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < world:
        communicator.update_topology()
    return communicator


@contextmanager
def connected(master: str, count: int = 2, **options: Any) -> Iterator[list[pccl.Communicator]]:
    """So many peers of one run, called a, b, c..."""
    peers = [pccl.Communicator(master, name=chr(ord("a") + i), **options) for i in range(count)]
    try:
        together(*(lambda peer=peer: join(peer, count) for peer in peers))
        yield peers
    finally:
        for peer in peers:
            peer.leave()
