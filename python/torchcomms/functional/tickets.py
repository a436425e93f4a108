"""Asynchronous operations that graphs have started.

An operator that starts one returns a ticket: a tensor of one number. The operator that waits for it gets the ticket. Until then the
memory of the operation is its own: a compiler may reuse or copy the memory of all tensors that it sees in between.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torchcomms._work import TorchWork

# If no one waits for so many, those are dropped whose ticket does not exist any more.
UNWAITED_MAX = 256

WeakStorage: Any = StorageWeakRef

_numbers = itertools.count(1)
_lock = threading.Lock()


@dataclass(slots=True)
class Started:
    """An operation that was started."""

    work: TorchWork
    outputs: list[torch.Tensor]
    """What it writes."""
    ticket: Any
    """Its storage, weakly."""


_started: dict[int, Started] = {}


def issue_ticket(work: TorchWork, outputs: list[torch.Tensor]) -> torch.Tensor:
    """Records an operation; the ticket to wait for it."""
    number = next(_numbers)
    ticket = torch.tensor([number])
    with _lock:
        if len(_started) >= UNWAITED_MAX:
            for old, one in list(_started.items()):
                if one.ticket.expired() and one.work.is_completed():
                    del _started[old]
        _started[number] = Started(work, outputs, WeakStorage(ticket.untyped_storage()))
    return ticket


def take(ticket: torch.Tensor) -> Started:
    """The operation of a ticket, which is given only once."""
    with _lock:
        started = _started.pop(int(ticket.item()), None)
    if started is None:
        raise RuntimeError(f"unknown ticket {int(ticket.item())}: the operation was waited for already")
    return started


def peek(ticket: torch.Tensor) -> Started:
    """The operation of a ticket, which stays."""
    return _started[int(ticket.item())]
