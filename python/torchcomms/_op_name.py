"""The names of operations."""

from __future__ import annotations

from enum import Enum, auto


class OpName(Enum):
    """The name of an operation, as hooks get it. ``str()`` ends in the member's name."""

    send = auto()
    recv = auto()
    broadcast = auto()
    all_reduce = auto()
    reduce = auto()
    all_gather = auto()
    all_gather_v = auto()
    all_gather_single = auto()
    reduce_scatter = auto()
    reduce_scatter_v = auto()
    reduce_scatter_single = auto()
    all_to_all_single = auto()
    all_to_all_v_single = auto()
    all_to_all = auto()
    barrier = auto()
    scatter = auto()
    gather = auto()
    gather_single = auto()
    all_gather_p_init = auto()
    all_gather_p_exec = auto()
    all_gather_p_free = auto()
    batch_op_issue = auto()
    split = auto()
    new_window = auto()
    finalize = auto()

    # Each call looks up members several times. Hashing by identity runs no Python code.
    __hash__ = object.__hash__
