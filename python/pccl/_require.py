"""Type checks for libraries that may not be installed."""

from __future__ import annotations

from pccl._enums import _numpy, _torch


def require_torch(tensor: object, name: str) -> None:
    """Checks that an argument is a torch tensor."""
    if not isinstance(tensor, _torch().Tensor):
        raise TypeError(f"invalid {name}: must be a torch tensor, not a {type(tensor).__name__}")


def require_numpy(array: object, name: str) -> None:
    """Checks that an argument is a numpy array."""
    if not isinstance(array, _numpy().ndarray):
        raise TypeError(f"invalid {name}: must be a numpy array, not a {type(array).__name__}")
