"""PyTorch optimisers as part of a shared state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# State that a step with zero gradients changes: counters and products.
_COUNTERS = ("step", "ax")
_ONES = ("mu_product", "mu")


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Creates the state of an optimiser without changing a parameter.

    An optimiser creates momenta and counters in its first ``step()``. A peer that joins later has made no step, so it would
    lack tensors that the others share. ``Run`` calls this for every optimiser in its state. An optimiser that has made a
    step, or was loaded from a checkpoint, is not changed.

    The state is created by a step with zero gradients and without weight decay; parameters and gradients are restored,
    and counters are reset. One difference from a new optimiser: with ``dampening``, SGD damps the first gradient too.
    """
    import torch

    bare = [p for group in optimizer.param_groups for p in group["params"] if not optimizer.state.get(p)]
    if not bare:
        return
    everyone = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in everyone]
    decays = [group.get("weight_decay") for group in optimizer.param_groups]
    values = [p.detach().clone() for p in bare]
    missing = {id(p) for p in bare}
    try:
        for parameter in everyone:
            # Parameters with a state are skipped: they get no gradient.
            parameter.grad = torch.zeros_like(parameter) if id(parameter) in missing else None
        for group in optimizer.param_groups:
            if group.get("weight_decay"):
                group["weight_decay"] = 0.0
        optimizer.step()
    finally:
        for parameter, gradient in zip(everyone, gradients, strict=True):
            parameter.grad = gradient
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            if decay is not None:
                group["weight_decay"] = decay
    with torch.no_grad():
        for parameter, value in zip(bare, values, strict=True):
            parameter.copy_(value)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in missing:
                _begin(optimizer.state[parameter], group)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of an optimiser's state, in the order of its parameters: ``"3.exp_avg"`` belongs to the fourth."""
    import torch

    number = 0
    for index, group in enumerate(optimizer.param_groups):
        for key in sorted(key for key, value in group.items() if isinstance(value, torch.Tensor)):
            yield f"group{index}.{key}", group[key]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key in sorted(state, key=str):
                value = state[key]
                if isinstance(value, torch.Tensor):
                    yield f"{number}.{key}", value
                elif isinstance(value, bool | int | float):
                    raise TypeError(
                        f"unsupported optimiser {type(optimizer).__name__}: its state {key!r} is a "
                        f"{type(value).__name__}, not a tensor; share its tensors by name instead"
                    )
            number += 1


def _begin(state: dict[str, Any], group: dict[str, Any]) -> None:
    """Resets counters and products."""
    import torch

    for key, value in state.items():
        begin = 0 if key in _COUNTERS else 1 if key in _ONES else group.get("lr") if key == "eta" else None
        if begin is None:
            continue
        if isinstance(value, torch.Tensor):
            value.detach().fill_(begin)
        else:
            state[key] = begin
