"""CUDA support."""

from __future__ import annotations

from ringfold._native import has_cuda

__all__ = ["is_available"]


def is_available() -> bool:
    """Whether there are a CUDA driver and a device."""
    return has_cuda()
