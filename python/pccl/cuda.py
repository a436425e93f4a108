"""Whether tensors may lie on a GPU."""

from __future__ import annotations

from ringfold._native import has_cuda

__all__ = ["is_available"]


def is_available() -> bool:
    """Whether CUDA tensors can be reduced and shared here: there is a driver, and a device."""
    return has_cuda()
