"""Gradients of operations. Each gradient is an operation again, and has a gradient itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from torchcomms._op_name import OpName
from torchcomms.functional import operators, tickets
from torchcomms.functional.operations import OPERATIONS

_LINEAR = ("SUM", "AVG", "PREMUL_SUM")


class Settings(NamedTuple):
    """The arguments of an operation beside its tensors, as operators take them."""

    comm: str
    peer: int
    reduce: str
    factor: float | None
    factor_tensor: torch.Tensor | None
    input_split_sizes: Sequence[int]
    output_split_sizes: Sequence[int]
    hints: Sequence[str]
    timeout: float | None


# The operation of the gradient.
_REVERSE: dict[str, str] = {
    OpName.all_reduce.name: OpName.all_reduce.name,
    OpName.all_gather.name: OpName.reduce_scatter.name,
    OpName.all_gather_v.name: OpName.reduce_scatter_v.name,
    OpName.all_gather_single.name: OpName.reduce_scatter_single.name,
    OpName.reduce_scatter.name: OpName.all_gather.name,
    OpName.reduce_scatter_v.name: OpName.all_gather_v.name,
    OpName.reduce_scatter_single.name: OpName.all_gather_single.name,
    OpName.all_to_all.name: OpName.all_to_all.name,
    OpName.all_to_all_single.name: OpName.all_to_all_single.name,
    OpName.all_to_all_v_single.name: OpName.all_to_all_v_single.name,
}


def needs_gradient(name: str, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an operation on these tensors is recorded."""
    if name not in _REVERSE or not torch.is_grad_enabled():
        return False
    for tensor in tensors:
        if tensor.requires_grad:
            return True
    return False


def detached(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without their history."""
    return [tensor.detach() if tensor.requires_grad else tensor for tensor in tensors]


class Exchange(torch.autograd.Function):
    """An operation whose results are new tensors.

    Runs it, or waits for one that was started. Outside of graphs it can also return results before they are there.
    """

    @staticmethod
    def forward(ctx: Any, name: str, stage: str, ticket: torch.Tensor | None, *rest: Any) -> Any:
        """``rest``: the number of outputs, the settings, the tensors that the results are like, and the inputs."""
        count, settings = rest[0], rest[1 : 1 + len(Settings._fields)]
        tensors = rest[1 + len(Settings._fields) :]
        outputs, inputs = list(tensors[:count]), list(tensors[count:])
        ctx.name, ctx.settings, ctx.count = name, settings, count
        ctx.shapes = [tuple(one.shape) for one in inputs]
        ctx.set_materialize_grads(True)
        if stage == "run":
            results = operators.run_operation(name, OPERATIONS[name], inputs, outputs, settings)
        elif stage == "wait":
            results = operators.wait_tensors(outputs, ticket)
        else:
            assert ticket is not None
            results = tickets.peek(ticket).outputs
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        settings = Settings(*ctx.settings)
        if settings.reduce and settings.reduce not in _LINEAR:
            raise RuntimeError(
                f"unsupported gradient of {ctx.name} with {settings.reduce}: only {', '.join(_LINEAR)} have one"
            )
        given = [grad.contiguous() for grad in grads]
        like = [given[0].new_zeros(shape) for shape in ctx.shapes]
        reverse = _REVERSE[ctx.name]
        reduces = reverse == OpName.all_reduce.name or "reduce_scatter" in reverse
        back = Settings(
            settings.comm,
            settings.peer,
            ("AVG" if settings.reduce == "AVG" else "SUM") if reduces else "",
            None,
            None,
            settings.output_split_sizes,
            settings.input_split_sizes,
            settings.hints,
            settings.timeout,
        )
        found = Exchange.apply(reverse, "run", None, len(like), *back, *like, *given)
        if settings.reduce == "PREMUL_SUM":
            factor = settings.factor if settings.factor_tensor is None else settings.factor_tensor
            found = [one * factor for one in found]
        elif settings.reduce == "AVG" and not reduces:
            size = len(ctx.shapes) if len(ctx.shapes) > 1 else like[0].numel() // max(given[0].numel(), 1)
            found = [one / size for one in found]
        return (*[None] * (4 + len(Settings._fields) + ctx.count), *found)


Assign = Callable[[torch.Tensor, torch.Tensor], None]


def assign(target: torch.Tensor, result: torch.Tensor) -> None:
    """Writes a result into the tensor that the program passed. That becomes part of its history, unless it is a leaf."""
    if target.requires_grad and target.is_leaf:
        target.detach().copy_(result.detach())
    else:
        target.copy_(result)
