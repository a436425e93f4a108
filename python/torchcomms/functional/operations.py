"""The operations that graphs can contain: which tensors they read and write."""

from __future__ import annotations

from typing import NamedTuple

from torchcomms._op_name import OpName


class Operation(NamedTuple):
    """How an operation uses its tensors."""

    input: str
    """``none``, ``one`` tensor, a ``list``, or ``output``: it works in place."""
    output: str
    """``none``, ``one`` or a ``list``."""
    keeps: bool = False
    """Whether parts of the output may stay as they were."""
    root_only: str = ""
    """Which side only the root uses: ``input`` or ``output``."""


OPERATIONS: dict[str, Operation] = {
    OpName.send.name: Operation("one", "none"),
    OpName.recv.name: Operation("none", "one"),
    OpName.broadcast.name: Operation("output", "one", keeps=True),
    OpName.all_reduce.name: Operation("output", "one", keeps=True),
    OpName.reduce.name: Operation("output", "one", keeps=True),
    OpName.all_gather.name: Operation("one", "list"),
    OpName.all_gather_v.name: Operation("one", "list"),
    OpName.all_gather_single.name: Operation("one", "one"),
    OpName.all_gather_p_exec.name: Operation("one", "one"),
    OpName.reduce_scatter.name: Operation("list", "one"),
    OpName.reduce_scatter_v.name: Operation("list", "one"),
    OpName.reduce_scatter_single.name: Operation("one", "one"),
    OpName.all_to_all_single.name: Operation("one", "one"),
    OpName.all_to_all_v_single.name: Operation("one", "one", keeps=True),
    OpName.all_to_all.name: Operation("list", "list"),
    OpName.barrier.name: Operation("none", "none"),
    OpName.scatter.name: Operation("list", "one", root_only="input"),
    OpName.gather.name: Operation("one", "list", root_only="output"),
    OpName.gather_single.name: Operation("one", "one", root_only="output"),
}


WINDOW_OPERATIONS: dict[str, Operation] = {
    "window_put": Operation("one", "none"),
    "window_get": Operation("none", "one"),
    "window_signal": Operation("none", "none"),
}
"""Those of a window. Their peer is the other rank, and puts and gets have an offset."""
