"""What communicators and windows do instead, in enabled mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchcomms._call import Call
from torchcomms._comm import TorchComm
from torchcomms._comm_operations import CommOperations, OptionalHints, Options
from torchcomms._options import Hints, TimeoutLike
from torchcomms._reduce_op import ReduceOp
from torchcomms._window import TorchCommWindow
from torchcomms._work import TorchWork
from torchcomms.functional import durations, eager, originals, traced
from torchcomms.functional.async_tensor import settled
from torchcomms.functional.gradients import needs_gradient

if TYPE_CHECKING:
    from torch import Tensor


def _issue(self: TorchComm, call: Call) -> Any:
    if torch.compiler.is_compiling():
        return traced.issue(self, call)
    return eager.issue(self, call)


def _all_reduce(
    self: TorchComm,
    tensor: Tensor,
    op: ReduceOp,
    async_op: bool,
    hints: OptionalHints = None,
    timeout: TimeoutLike = None,
    options: Options = None,
) -> Any:
    """Reduces the tensors of all ranks. Every rank gets the result, the same bits everywhere."""
    if torch.compiler.is_compiling():
        return CommOperations.all_reduce(self, tensor, op, async_op, hints, timeout, options)
    tensor = settled(tensor)
    if needs_gradient("all_reduce", [tensor]):
        return CommOperations.all_reduce(self, tensor, op, async_op, hints, timeout, options)
    work: Any = originals.all_reduce(self, tensor, op, async_op, hints, timeout, options)
    # Its fast path does not call _issue().
    return eager.as_result("one", [tensor], work) if async_op and isinstance(work, TorchWork) else work


def _put(
    self: TorchCommWindow,
    tensor: Tensor,
    rank: int,
    elements: int,
    async_op: bool,
    hints: Hints,
    timeout: TimeoutLike,
) -> Any:
    end = (rank, elements, async_op, hints, timeout)
    if torch.compiler.is_compiling():
        return traced.issue_on_window(self, "window_put", tensor, *end)
    return originals.run_on_window(self, "_put", settled(tensor), *end)


def _get(
    self: TorchCommWindow,
    tensor: Tensor,
    rank: int,
    elements: int,
    async_op: bool,
    hints: Hints,
    timeout: TimeoutLike,
) -> Any:
    end = (rank, elements, async_op, hints, timeout)
    if torch.compiler.is_compiling():
        return traced.issue_on_window(self, "window_get", tensor, *end)
    target = settled(tensor)
    work = originals.run_on_window(self, "_get", target, *end)
    return eager.as_result("one", [target], work) if async_op else work


def _signal(self: TorchCommWindow, peer: int, async_op: bool, hints: Hints, timeout: TimeoutLike) -> Any:
    if torch.compiler.is_compiling():
        return traced.issue_on_window(self, "window_signal", None, peer, 0, async_op, hints, timeout)
    return originals.run_on_window(self, "_signal", peer, async_op, hints, timeout)


def _wait_signal(self: TorchCommWindow, peer: int, async_op: bool, hints: Hints, timeout: TimeoutLike) -> Any:
    if torch.compiler.is_compiling():
        # A compiler may read the window's tensor before: it does not know that other ranks write it.
        raise RuntimeError("unsupported wait_signal() in a compiled function: call it outside")
    return originals.run_on_window(self, "_wait_signal", peer, async_op, hints, timeout)


def replace_methods() -> None:
    """Makes communicators and windows usable in compiled functions."""
    durations.allow_in_compiled_functions()
    TorchComm._issue = _issue  # type: ignore[method-assign]
    TorchComm.all_reduce = _all_reduce  # type: ignore[method-assign]
    for kind in originals.WINDOWS:
        for name, method in zip(originals.WINDOW_METHODS, (_put, _get, _signal, _wait_signal)):
            setattr(kind, name, method)
