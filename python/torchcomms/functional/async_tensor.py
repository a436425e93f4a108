"""Results of asynchronous operations outside of compiled functions: tensors and lists that wait on their first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from torchcomms._work import TorchWork, WorkStatus


class Waitable(Protocol):
    """A work."""

    @property
    def status(self) -> WorkStatus: ...

    def is_completed(self) -> bool: ...

    def wait(self) -> Any: ...

    def wait_blocking(self) -> Any: ...


class FakeWork(TorchWork):
    """The work of a result that is there already."""

    def __init__(self, *_: object) -> None:
        super().__init__()


def _getter(name: str) -> Any:
    return getattr(torch.Tensor, name).__get__


# These do not need the values.
_WITHOUT_WAITING = {
    *map(
        _getter, ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn", "grad")
    ),
    *map(_getter, ("is_cpu", "is_cuda", "itemsize", "nbytes", "output_nr", "retains_grad")),
    getattr(torch.Tensor, "grad").__set__,  # noqa: B009
    *(torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.nelement, torch.Tensor.stride),
    *(torch.Tensor.element_size, torch.Tensor.is_contiguous, torch.Tensor.is_floating_point),
    *(torch.Tensor.retain_grad, torch.Tensor.__len__, torch.Tensor.is_complex, torch.numel, torch.is_tensor),
}


class TorchCommsAsyncTensor(torch.Tensor):
    """The result of an asynchronous operation. Its first use waits; it is also the operation's work.

    Without a work it is complete. It stands for ``tensor``: functions see that tensor, and so do ``grad``, ``grad_fn`` and ``is_leaf``. Metadata can be read
    without waiting.
    """

    _tensor: torch.Tensor
    _work: Waitable

    @staticmethod
    def __new__(cls, tensor: torch.Tensor, work: Waitable | None) -> TorchCommsAsyncTensor:
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            tensor.size(),
            strides=tensor.stride(),
            storage_offset=tensor.storage_offset(),
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
        )
        self._tensor, self._work = tensor, FakeWork() if work is None else work
        return self

    def wait(self) -> torch.Tensor:
        """Waits for the operation, raises its error, and returns the tensor."""
        self._work.wait()
        return self._tensor

    trigger_wait = wait

    def wait_blocking(self) -> torch.Tensor:
        """Waits until the result is in memory, even if ``wait()`` only orders a stream after it."""
        self._work.wait_blocking()
        return self._tensor

    def is_completed(self) -> bool:
        """Whether the operation has ended or failed. Does not wait."""
        return self._work.is_completed()

    @property
    def status(self) -> WorkStatus:
        """The operation's state."""
        return self._work.status

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        unwrap = _peeked if func in _WITHOUT_WAITING else settled
        return func(*unwrap(args), **unwrap(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*settled(args), **settled(kwargs or {}))


class TorchCommsAsyncList(list[torch.Tensor]):
    """The results of an asynchronous operation on a list. The first use of each waits; it is also the operation's work."""

    def __init__(self, tensors: Sequence[torch.Tensor], work: Waitable) -> None:
        super().__init__(TorchCommsAsyncTensor(tensor, work) for tensor in tensors)
        self._tensors, self._work = list(tensors), work

    def wait(self) -> list[torch.Tensor]:
        """Waits for the operation, raises its error, and returns the tensors."""
        self._work.wait()
        return self._tensors

    def wait_blocking(self) -> list[torch.Tensor]:
        """Waits until the results are in memory, even if ``wait()`` only orders a stream after it."""
        self._work.wait_blocking()
        return self._tensors

    def is_completed(self) -> bool:
        """Whether the operation has ended or failed. Does not wait."""
        return self._work.is_completed()

    @property
    def status(self) -> WorkStatus:
        """The operation's state."""
        return self._work.status


def settled(value: Any) -> Any:
    """A value in which asynchronous tensors are waited for, and replaced by what they stand for."""
    return _replaced(value, TorchCommsAsyncTensor.wait)


def _peeked(value: Any) -> Any:
    return _replaced(value, lambda one: one._tensor)


def _replaced(value: Any, get: Callable[[TorchCommsAsyncTensor], torch.Tensor]) -> Any:
    """The value with each asynchronous tensor replaced, also in lists, tuples and dictionaries."""
    if isinstance(value, TorchCommsAsyncTensor):
        return get(value)
    if isinstance(value, dict):
        return {key: _replaced(one, get) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        found = [_replaced(one, get) for one in value]
        if any(one is not old for one, old in zip(found, value)):
            return tuple(found) if isinstance(value, tuple) else found
    return value
