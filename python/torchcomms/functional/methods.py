"""What communicators and windows do instead, in enabled mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchcomms._call import Call
from torchcomms._comm import TorchComm
from torchcomms._comm_operations import CommOperations
from torchcomms._options import Hints, TimeoutLike
from torchcomms._reduce_op import ReduceOp
from torchcomms._window import FakeWindow, TorchCommWindow
from torchcomms._work import TorchWork
from torchcomms.functional import durations, eager, traced
from torchcomms.functional.async_tensor import settled
from torchcomms.functional.gradients import needs_gradient

if TYPE_CHECKING:
    from torch import Tensor

_all_reduce_plain = TorchComm.all_reduce


def _issue(self: TorchComm, call: Call) -> Any:
    if torch.compiler.is_compiling():
        return traced.issue(self, call)
    return eager.issue(self, call, self._issue_plain)


def _all_reduce(
    self: TorchComm,
    tensor: Tensor,
    op: ReduceOp,
    async_op: bool,
    hints: Hints = None,
    timeout: TimeoutLike = None,
) -> Any:
    """Reduces the tensors of all ranks. Every rank gets the result, the same bits everywhere."""
    if torch.compiler.is_compiling():
        return CommOperations.all_reduce(self, tensor, op, async_op, hints, timeout)
    tensor = settled(tensor)
    if needs_gradient("all_reduce", [tensor]):
        return CommOperations.all_reduce(self, tensor, op, async_op, hints, timeout)
    work: Any = _all_reduce_plain(self, tensor, op, async_op, hints, timeout)
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
    return self._put_plain(settled(tensor), *end)


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
    work = self._get_plain(target, *end)
    return eager.as_result("one", [target], work) if async_op else work


def _signal(self: TorchCommWindow, peer: int, async_op: bool, hints: Hints, timeout: TimeoutLike) -> Any:
    if torch.compiler.is_compiling():
        return traced.issue_on_window(self, "window_signal", None, peer, 0, async_op, hints, timeout)
    return self._signal_plain(peer, async_op, hints, timeout)


def _wait_signal(self: TorchCommWindow, peer: int, async_op: bool, hints: Hints, timeout: TimeoutLike) -> Any:
    if torch.compiler.is_compiling():
        # A compiler may read the window's tensor before: it does not know that other ranks write it.
        raise RuntimeError("unsupported wait_signal() in a compiled function: call it outside")
    return self._wait_signal_plain(peer, async_op, hints, timeout)


def replace_methods() -> None:
    """Makes communicators and windows usable in compiled functions. What was replaced stays, with ``_plain`` in its name."""
    durations.allow_in_compiled_functions()
    _replace(TorchComm, _issue=_issue)
    TorchComm.all_reduce = _all_reduce  # type: ignore[method-assign]
    for kind in (FakeWindow, TorchCommWindow):
        _replace(kind, _put=_put, _get=_get, _signal=_signal, _wait_signal=_wait_signal)


def _replace(kind: type, **methods: Any) -> None:
    for name, method in methods.items():
        setattr(kind, f"{name}_plain", kind.__dict__[name])
        setattr(kind, name, method)
