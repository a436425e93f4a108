"""The small part of the replicated state: everything but parameters and the tensors of optimisers."""

from __future__ import annotations

import io
from typing import Any

import torch

# More would be sent in every join to all replicas.
BYTES_MAX = 16 << 20


def pack(values: dict[str, Any]) -> torch.Tensor:
    """The values as bytes."""
    buffer = io.BytesIO()
    torch.save(values, buffer)
    packed = torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)
    if packed.numel() > BYTES_MAX:
        raise ValueError(
            f"invalid state of {packed.numel()} bytes beside the tensors: at most {BYTES_MAX}; put tensors into extra={{...}}"
        )
    return packed


def unpack(packed: torch.Tensor) -> dict[str, Any]:
    """The values. What another replica sends can make tensors and plain values only, not run code."""
    values: dict[str, Any] = torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)
    return values


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of an optimiser, such as learning rates."""
    return [
        {key: value for key, value in group.items() if key != "params" and _is_plain(value)}
        for group in optimizer.param_groups
    ]


def set_settings(optimizer: torch.optim.Optimizer, settings: list[dict[str, Any]]) -> None:
    """Sets the settings of an optimiser."""
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        group.update(values)


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | tuple | list | type(None))
