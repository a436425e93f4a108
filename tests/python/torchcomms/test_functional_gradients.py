"""Gradients of operations, with ``TORCHCOMMS_PATCH_FOR_COMPILE=1``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import Ranks
from variants import short_of

torch = pytest.importorskip("torch", reason="torch is not installed")

import torchcomms  # noqa: E402
from test_functional import ENABLED, comm, compiled, deadline_of, environment, inductor_marks  # noqa: E402
from torchcomms import ReduceOp, functional  # noqa: E402

pytestmark = pytest.mark.skipif(
    not functional.is_torch_compile_supported(), reason=f"torch {torch.__version__} is too old"
)

Tensor = torch.Tensor
# What rank r's loss is multiplied with, so that the gradients of the ranks differ.
WEIGHTS = (1.0, 10.0)
STEPS = (torch.arange(1.0, 5.0), torch.arange(5.0, 9.0))
"""What the results are multiplied with: of the first and of the second rank's part."""


def all_reduce(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    c.all_reduce(x, ReduceOp.SUM, False)
    return x * STEPS[0]


def all_reduce_average(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    work = c.all_reduce(x, ReduceOp.AVG, True)
    work.wait()
    return x * STEPS[0]


def all_reduce_premul(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    """The value itself, which waits."""
    value: Any = c.all_reduce(x, ReduceOp.PREMUL_SUM(3.0), True)
    return value * STEPS[0]


def all_gather(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    outputs = [torch.empty(4), torch.empty(4)]
    c.all_gather(outputs, x, True).wait()
    return outputs[0] * STEPS[0] + outputs[1] * STEPS[1]


def all_gather_single(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    output = torch.empty(2, 4)
    c.all_gather_single(output, x, False)
    return output * torch.stack(STEPS)


def reduce_scatter(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    output = torch.empty(2)
    c.reduce_scatter(output, [x[:2].contiguous(), x[2:].contiguous()], ReduceOp.SUM, False)
    return output * STEPS[0][:2]


def reduce_scatter_single(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    output = torch.empty(2)
    value: Any = c.reduce_scatter_single(output, x, ReduceOp.AVG, True)
    value.wait()
    return output * STEPS[0][:2]


def all_to_all(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    outputs = [torch.empty(2), torch.empty(2)]
    c.all_to_all(outputs, [x[:2].contiguous(), x[2:].contiguous()], False)
    return torch.cat(outputs) * STEPS[0]


def all_to_all_single(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    output = torch.empty(4)
    c.all_to_all_single(output, x, True).wait()
    return output * STEPS[0]


def all_to_all_v_single(c: torchcomms.TorchComm, x: Tensor) -> Tensor:
    """Rank 0 sends 1 and 2 elements, and rank 1 sends 1 and 1."""
    sent, received = ([1, 2], [1, 1]) if c.get_rank() == 0 else ([1, 1], [2, 1])
    output = torch.zeros(4)
    c.all_to_all_v_single(output, x, received, sent, False)
    return output * STEPS[0]


FUNCTIONS: dict[str, Callable[[torchcomms.TorchComm, Tensor], Tensor]] = {
    one.__name__: one
    for one in (
        *(all_reduce, all_reduce_average, all_reduce_premul, all_gather, all_gather_single, reduce_scatter),
        *(reduce_scatter_single, all_to_all, all_to_all_single, all_to_all_v_single),
    )
}


def expected(rank: int) -> dict[str, list[float]]:
    """The gradients of the input: by the losses of both ranks together."""
    one, both = STEPS[0], sum(WEIGHTS)
    low, high = one[:2], one[2:]
    # Rank r's part of each rank's output, with that rank's weight.
    exchanged = torch.cat([WEIGHTS[r] * (low if rank == 0 else high) for r in (0, 1)])
    a, b = WEIGHTS
    uneven = [a * 1, b * 1, b * 2, 0.0] if rank == 0 else [a * 2, b * 3, 0.0, 0.0]
    return {
        "all_reduce": (both * one).tolist(),
        "all_reduce_average": (both * one / 2).tolist(),
        "all_reduce_premul": (3 * both * one).tolist(),
        "all_gather": (both * STEPS[rank]).tolist(),
        "all_gather_single": (both * STEPS[rank]).tolist(),
        "reduce_scatter": torch.cat([a * low, b * low]).tolist(),
        "reduce_scatter_single": (torch.cat([a * low, b * low]) / 2).tolist(),
        "all_to_all": exchanged.tolist(),
        "all_to_all_single": exchanged.tolist(),
        "all_to_all_v_single": uneven,
    }


def check_gradients(backend: str, names: list[str]) -> None:
    """Operations in one function, whose gradients accumulate over two calls."""
    c = comm()
    weight = WEIGHTS[c.get_rank()]
    functions = [FUNCTIONS[name] for name in names]

    def losses(inputs: list[Tensor]) -> Tensor:
        total = inputs[0].new_zeros(())
        for function, x in zip(functions, inputs):
            total = total + function(c, x * 1).sum()
        return total * weight

    run = losses if backend == "none" else compiled(losses, backend)
    inputs = [torch.arange(4.0).requires_grad_() for _ in names]
    for step in (1, 2):
        run(inputs).backward()
        for name, x in zip(names, inputs):
            assert x.grad is not None
            wanted = [step * one for one in expected(c.get_rank())[name]]
            assert x.grad.tolist() == pytest.approx(wanted), name
    c.finalize()


# To compile all takes long.
FEW = ["all_reduce_average", "all_gather", "reduce_scatter_single", "all_to_all_v_single"]
ALL = list(FUNCTIONS)


@pytest.mark.parametrize(
    "backend, names",
    short_of(
        [("none", ALL), ("aot_eager", FEW)],
        [("eager", ALL), ("aot_eager", ALL), pytest.param("inductor", ALL, marks=inductor_marks)],
    ),
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_gradients_are_those_of_all_ranks(
    ranks: Ranks, backend: str, names: list[str], tmp_path: Path
) -> None:
    deadline = deadline_of(backend)
    ranks.run(2, check_gradients, backend, names, env=environment(tmp_path), deadline=deadline)


def use_eager_gradients() -> None:
    c = comm()

    # A value before it was waited for: `grad_fn` and `grad` are those of what it stands for.
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    value: Any = c.all_reduce(y, ReduceOp.SUM, True)
    assert value.requires_grad and not value.is_leaf and value.grad_fn is not None
    value.retain_grad()
    loss = value.sum()
    loss.backward(retain_graph=True)
    assert value.grad.tolist() == [1.0] * 3 and x.grad is not None and x.grad.tolist() == [4.0] * 3
    loss.backward()
    assert x.grad.tolist() == [8.0] * 3
    # The tensor that was passed has the result as well, with its history.
    assert y.tolist() == [4.0] * 3 and y.grad_fn is not None

    # A leaf changes too, but only the value has a history.
    leaf = torch.ones(2, requires_grad=True)
    of_leaf: Any = c.all_reduce(leaf, ReduceOp.SUM, True)
    of_leaf.sum().backward()
    assert leaf.tolist() == [2.0] * 2 and leaf.grad is not None and leaf.grad.tolist() == [2.0] * 2

    # Chains, and gradients of gradients: the sum of x³ over both ranks, twice.
    x = torch.tensor([2.0], requires_grad=True)
    first: Any = c.all_reduce(x**3, ReduceOp.SUM, True)
    second: Any = c.all_reduce(first * 1, ReduceOp.SUM, True)
    (gradient,) = torch.autograd.grad(second.sum(), x, create_graph=True)
    assert gradient.tolist() == [4 * 3 * 4.0]
    (curvature,) = torch.autograd.grad(gradient.sum(), x)
    assert curvature.tolist() == [4 * 6 * 2.0]

    # Nothing is recorded without grad mode, for other operations, and for numbers.
    with torch.no_grad():
        y = torch.ones(1, requires_grad=True)
        c.all_reduce(y, ReduceOp.SUM, False)
    c.broadcast(y, 0, False)
    assert y.item() == 2.0 and y.grad_fn is None
    z = torch.ones(1, requires_grad=True) * 1
    c.all_reduce(z, ReduceOp.MAX, False)
    with pytest.raises(RuntimeError, match="unsupported gradient of all_reduce with MAX"):
        z.sum().backward()
    c.finalize()


def test_gradients_chain_and_have_gradients(ranks: Ranks) -> None:
    ranks.run(2, use_eager_gradients, env=ENABLED)
