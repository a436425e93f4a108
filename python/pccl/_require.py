"""Whether an object is of a library that may not be installed."""

from __future__ import annotations

from pccl._enums import _numpy, _torch


def require_torch(tensor: object, name: str) -> None:
    """It is a torch tensor, or a TypeError says what it is."""
    if not isinstance(tensor, _torch().Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, and no torch tensor")


def require_numpy(array: object, name: str) -> None:
    """It is a numpy array, or a TypeError says what it is."""
    if not isinstance(array, _numpy().ndarray):
        raise TypeError(f"{name} is a {type(array).__name__}, and no numpy array")
