"""Checks of numbers, and of types of libraries that may not be installed."""

from __future__ import annotations

from typing import Any

from pccl._enums import _numpy, _torch

# What is sent is 32 bits of milliseconds.
SECONDS_MAX = float((2**32 - 1) // 1000)


def require_integer(value: Any, name: str, least: int, most: int = 2**64 - 1) -> int:
    """Checks that an argument is an integer in a range."""
    if isinstance(value, int) and least <= value <= most:
        return value
    raise ValueError(f"invalid {name} {value!r}: must be an integer from {least} to {most}")


def require_seconds(value: Any, name: str, most: float = SECONDS_MAX) -> float | None:
    """Checks that an argument is a number of seconds, or None."""
    if value is None or (isinstance(value, (int, float)) and 0 <= value <= most):
        return value
    raise ValueError(f"invalid {name} {value!r}: must be a number of seconds from 0 to {most:g}")


def require_torch(tensor: object, name: str) -> None:
    """Checks that an argument is a torch tensor."""
    if not isinstance(tensor, _torch().Tensor):
        raise TypeError(f"invalid {name}: must be a torch tensor, not a {type(tensor).__name__}")


def require_numpy(array: object, name: str) -> None:
    """Checks that an argument is a numpy array."""
    if not isinstance(array, _numpy().ndarray):
        raise TypeError(f"invalid {name}: must be a numpy array, not a {type(array).__name__}")
