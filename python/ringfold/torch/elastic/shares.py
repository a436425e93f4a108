"""The weight of a rank within its replica, when the samples of a step do not divide evenly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


@contextmanager
def scaled_backward(model: torch.nn.Module, share: float) -> Iterator[None]:
    """Multiplies the gradients of backward passes through the outputs of the model by this number."""
    if share == 1.0:
        yield
        return

    def scale(_module: torch.nn.Module, _inputs: Any, outputs: Any) -> None:
        for output in tree_leaves(outputs):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(lambda gradient: gradient * share)  # type: ignore[no-untyped-call]

    handle = model.register_forward_hook(scale)
    try:
        yield
    finally:
        handle.remove()
