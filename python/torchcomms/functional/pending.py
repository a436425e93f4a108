"""Which eager operations write which tensors, for ``torchcomm_wait_tensors``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from torchcomms.functional.async_tensor import Waitable
from torchcomms.functional.tickets import WeakStorage

# Works by the address of the memory that they write.
_works: dict[int, tuple[Any, Waitable]] = {}
_lock = threading.Lock()


def remember(tensors: Sequence[torch.Tensor], work: Waitable) -> None:
    """Records that a work writes these tensors."""
    with _lock:
        for address in [
            key for key, (storage, one) in _works.items() if storage.expired() or one.is_completed()
        ]:
            del _works[address]
        for tensor in tensors:
            storage = tensor.untyped_storage()
            _works[storage.data_ptr()] = (WeakStorage(storage), work)


def wait_for(tensors: Sequence[torch.Tensor]) -> None:
    """Waits for the last operation on each tensor's memory."""
    for tensor in tensors:
        with _lock:
            storage, work = _works.pop(tensor.untyped_storage().data_ptr(), (None, None))
        if storage is not None and work is not None and not storage.expired():
            work.wait()
