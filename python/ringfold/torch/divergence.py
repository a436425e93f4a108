"""Replicas that hold different bits: what decides their updates is compared, and what differs is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist

# The words of a tensor that are hashed at a time: more memory than for their weights and products is not needed.
_WORDS = 1 << 20
# Odd numbers, so that no bit of a word is lost modulo 2**64.
_STEP = 0x1E3779B97F4A7C15
_TURN = 0x2545F4914F6CDD1D
# How many differences an error names.
_SHOWN_MAX = 4


class DivergenceError(RuntimeError):
    """Replicas that should be equal are not. The text names them, and what differs."""


def check_replicas(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Raises a :class:`DivergenceError` if the ranks hold other parameters or, with an ``optimizer``, another state or other
    settings of it. All ranks of the group call it: that of the model if it is a DDP one, or else all ranks. Buffers, and parameters that are
    sharded, are not compared.
    """
    from ringfold.elastic.optimizer import optimizer_tensors
    from ringfold.torch.elastic.small_state import settings_of

    group = group or getattr(model, "process_group", None)
    tensors: list[tuple[str, torch.Tensor]] = [(f"model.{name}", p) for name, p in model.named_parameters()]
    details: dict[str, str] = {}
    if optimizer is not None:
        tensors += [(f"optimizer.{name}", tensor) for name, tensor in optimizer_tensors(optimizer)]
        details = dict(leaves("optimizer", settings_of(optimizer)))
    details |= hashes_of((name, tensor) for name, tensor in tensors if not hasattr(tensor, "to_local"))
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, details, group)
    found = differences(gathered, [f"rank {rank}" for rank in range(len(gathered))])
    if found:
        raise DivergenceError(f"the replicas have diverged: {found}")


def leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The plain values in a value, by name. Objects count by their type, and tensors by their hash."""
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda item: str(item[0]))
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    elif isinstance(value, torch.Tensor):
        yield from hashes_of([(name, value)]).items()
    elif isinstance(value, bool | int | float | str | None):
        yield name, repr(value)
    else:
        yield name, type(value).__name__
    for key, inner in pairs:
        yield from leaves(f"{name}.{key}", inner)


def digest_of(value: Any) -> int:
    """A number for a value: 48 bits, which a float64 holds, and not 0."""
    text = "\n".join(f"{name}={leaf}" for name, leaf in leaves("", value))
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) or 1


@torch.no_grad()
def content_of(tensor: torch.Tensor) -> torch.Tensor:
    """A number for the bits of a tensor, computed on its device: every changed word changes it."""
    content = tensor.detach().reshape(-1).view(torch.uint8)
    words = min(_WORDS, -(-content.numel() // 8))
    weights = torch.arange(1, words + 1, device=content.device).mul_(_STEP).bitwise_or_(1)
    total = torch.zeros((), dtype=torch.int64, device=content.device)
    for part in torch.split(content, 8 * _WORDS):
        # Padding copies: each part alone, so that a large tensor needs little memory.
        padded = torch.nn.functional.pad(part, (0, -part.numel() % 8)).view(torch.int64)
        total.mul_(_TURN).add_((padded * weights[: padded.numel()]).sum())
    return total


def hashes_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """The hashes of tensors by name, as texts."""
    # All are computed before the first one is read, which waits for the device.
    contents = [(name, content_of(tensor)) for name, tensor in tensors]
    return {name: f"hash {int(content) % (1 << 64):016x}" for name, content in contents}


def differences(details: Sequence[Mapping[str, str]], names: Sequence[str]) -> str:
    """What differs between replicas with these names: the values, and who has them. Empty if nothing does."""
    found = []
    for key in dict.fromkeys(key for each in details for key in each):
        owners: dict[str, list[str]] = {}
        for each, name in zip(details, names, strict=True):
            owners.setdefault(each.get(key, "missing"), []).append(name)
        if len(owners) > 1:
            values = (f"{value} on {', '.join(who)}" for value, who in owners.items())
            found.append(f"{key} is {' and '.join(values)}")
    rest = [f"{len(found) - _SHOWN_MAX} more"] * (len(found) > _SHOWN_MAX)
    # It comes from other processes, and may reach a terminal.
    return "".join(c if c.isprintable() else "?" for c in "; ".join(found[:_SHOWN_MAX] + rest))
