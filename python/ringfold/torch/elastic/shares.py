"""The weight of a rank within its replica, when the samples of a step do not divide evenly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def scaled_backward(model: torch.nn.Module, share: float) -> Iterator[None]:
    """Multiplies the gradients of backward passes through the model by this number."""
    if share == 1.0:
        yield
        return

    def scale(_module: torch.nn.Module, gradients: Any) -> Any:
        return tuple(None if gradient is None else gradient * share for gradient in gradients)

    handle = model.register_full_backward_pre_hook(scale)
    try:
        yield
    finally:
        handle.remove()
