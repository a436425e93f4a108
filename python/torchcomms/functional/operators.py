"""The operators of graphs: ``torch.ops.torchcomms.torchcomm_…``.

``torchcomm_<operation>_`` runs an operation, and writes its outputs, which begin with the values ``initial`` if some may stay.
``torchcomm_<operation>`` starts it, and returns a ticket for ``torchcomm_wait_tensors`` (returns the results) or
``torchcomm_wait_tensors_`` (writes them); ``outputs`` are tensors like the results. The schemas declare all mutations, and
all operators but ``torchcomm_wait_tensors`` also claim to write :data:`ORDER`, so a compiler keeps their order and drops none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchcomms._call import Call
from torchcomms._op_name import OpName
from torchcomms._reduce_op import RedOpType, ReduceOp
from torchcomms._work import TorchWork
from torchcomms.functional import handles, originals, pending, tickets
from torchcomms.functional.operations import OPERATIONS, WINDOW_OPERATIONS, Operation

ORDER = torch.zeros(1, dtype=torch.int8)
"""What all operations claim to write. All ranks must issue them in the same order."""

_COMM_SETTINGS = (
    "str comm, SymInt peer, str reduce, float? factor, Tensor? factor_tensor, SymInt[] input_split_sizes, "
    "SymInt[] output_split_sizes, str[] hints, float? timeout"
)
_WINDOW_SETTINGS = "str window, SymInt peer, SymInt offset, str[] hints, float? timeout"

# Operations need the memory format that the program has.
_TAGS = (getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),)

Begin = Callable[..., TorchWork]


def _begin_on_comm(
    name: str,
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    async_op: bool,
    comm: str,
    peer: int,
    reduce: str,
    factor: float | None,
    factor_tensor: torch.Tensor | None,
    input_split_sizes: list[int],
    output_split_sizes: list[int],
    hints: list[str],
    timeout: float | None,
) -> TorchWork:
    how = OPERATIONS[name]
    output = _operand(how.output, outputs)
    call = Call(
        OpName[name],
        async_op,
        _hints(hints),
        timeout,
        output if how.input == "output" else _operand(how.input, inputs),
        output,
        peer,
        ReduceOp(RedOpType[reduce], factor if factor_tensor is None else factor_tensor) if reduce else None,
        input_split_sizes or None,
        output_split_sizes or None,
    )
    return originals.issue(handles.find_comm(comm), call)


def _begin_on_window(
    name: str,
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    async_op: bool,
    window: str,
    peer: int,
    offset: int,
    hints: list[str],
    timeout: float | None,
) -> TorchWork:
    if name == "window_signal":
        tensors, offsets = [], []
    else:
        tensors, offsets = [*inputs, *outputs], [offset]
    found = handles.find_window(window)
    end = (*tensors, peer, *offsets, async_op, _hints(hints), timeout)
    return originals.run_on_window(found, name.removeprefix("window"), *end)


def _operand(kind: str, tensors: list[torch.Tensor]) -> Any:
    if kind == "list":
        return list(tensors)
    return tensors[0] if tensors else None


def _hints(flat: list[str]) -> dict[str, str] | None:
    return dict(zip(flat[::2], flat[1::2])) or None


def _define(name: str, how: Operation, settings: str, begin: Begin) -> None:
    """Defines both operators of an operation."""

    def run(
        inputs: list[torch.Tensor],
        initial: list[torch.Tensor],
        outputs: list[torch.Tensor],
        order: torch.Tensor,
        *settings: Any,
    ) -> None:
        for output, value in zip(outputs, initial):
            output.copy_(value)
        begin(name, inputs, outputs, False, *settings)

    def start(
        inputs: list[torch.Tensor], outputs: list[torch.Tensor], order: torch.Tensor, *settings: Any
    ) -> torch.Tensor:
        own = [one.clone() if how.keeps else torch.empty_like(one) for one in outputs]
        work = begin(name, [one.clone() for one in inputs], own, True, *settings)
        return tickets.issue_ticket(work, own)

    end = f"Tensor(b!) order, {settings}"
    writes = f"Tensor[] inputs, Tensor[] initial, Tensor(a!)[] outputs, {end}"
    _operator(f"{name}_", f"({writes}) -> ()", ("outputs", "order"), run, _fake_run)
    reads = f"Tensor[] inputs, Tensor[] outputs, {end}"
    _operator(name, f"({reads}) -> Tensor", ("order",), start, _fake_start)


def _fake_run(*_: Any) -> None:
    return


def _fake_start(*_: Any) -> torch.Tensor:
    return torch.empty(1, dtype=torch.int64)


def _operator(
    name: str, schema: str, writes: tuple[str, ...], function: Callable[..., Any], fake: Callable[..., Any]
) -> None:
    full = f"torchcomms::torchcomm_{name}"
    torch.library.custom_op(full, function, mutates_args=writes, schema=schema, tags=_TAGS)
    torch.library.register_fake(full, fake)


def _wait_tensors(tensors: list[torch.Tensor], ticket: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Waits for an operation, and returns its results; without a ticket, for all operations that write these tensors."""
    if ticket is None:
        pending.wait_for(tensors)
        # The schema says that results share no memory with arguments.
        return [tensor.clone() for tensor in tensors]
    started = tickets.take(ticket)
    started.work.wait()
    return started.outputs


def _wait_tensors_in_place(
    tensors: list[torch.Tensor], ticket: torch.Tensor | None = None, order: torch.Tensor | None = None
) -> None:
    """Waits for an operation, and writes its results into the tensors, which ``torchcomm_wait_tensors_`` then returns."""
    if ticket is None:
        return pending.wait_for(tensors)
    started = tickets.take(ticket)
    started.work.wait()
    for tensor, result in zip(tensors, started.outputs):
        tensor.copy_(result)


def _fake_wait(tensors: list[torch.Tensor], ticket: torch.Tensor | None = None) -> list[torch.Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors]


for _name, _how in OPERATIONS.items():
    _define(_name, _how, _COMM_SETTINGS, _begin_on_comm)
for _name, _how in WINDOW_OPERATIONS.items():
    _define(_name, _how, _WINDOW_SETTINGS, _begin_on_window)
_operator(
    "wait_tensors", "(Tensor[] tensors, Tensor? ticket=None) -> Tensor[]", (), _wait_tensors, _fake_wait
)
# Its results are those that were waited for, so the gradient is the identity.
torch.library.register_autograd("torchcomms::torchcomm_wait_tensors", lambda _, grads: (list(grads), None))
_WAIT_IN_PLACE = "Tensor(a!)[] tensors, Tensor? ticket=None, Tensor(b!)? order=None"
_operator(
    "await_tensors_", f"({_WAIT_IN_PLACE}) -> ()", ("tensors", "order"), _wait_tensors_in_place, _fake_run
)


def _wait_and_return(
    tensors: list[torch.Tensor], ticket: torch.Tensor | None = None, order: torch.Tensor | None = None
) -> list[torch.Tensor]:
    torch.ops.torchcomms.torchcomm_await_tensors_(tensors, ticket, order)
    return tensors


# Operators that are functionalized return no arguments, so graphs contain the one above.
_library: Any = torch.library.Library("torchcomms", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(f"torchcomm_wait_tensors_({_WAIT_IN_PLACE}) -> Tensor(a!)[]")
_library.impl("torchcomm_wait_tensors_", _wait_and_return, "CompositeImplicitAutograd")

RUN = {
    name: getattr(torch.ops.torchcomms, f"torchcomm_{name}_") for name in (*OPERATIONS, *WINDOW_OPERATIONS)
}
"""The operators that run an operation, by its name."""
START = {
    name: getattr(torch.ops.torchcomms, f"torchcomm_{name}") for name in (*OPERATIONS, *WINDOW_OPERATIONS)
}
"""Those that start it."""


def run_operation(
    name: str,
    how: Operation,
    inputs: list[torch.Tensor],
    targets: list[torch.Tensor],
    settings: Sequence[Any],
) -> list[torch.Tensor]:
    """Runs an operation; its results are new tensors.

    Operators do not write tensors that others read: inductor 2.15 may move such reads behind the write.
    """
    is_in_place = how.input == "output"
    given = inputs if is_in_place else targets
    results = [torch.empty_like(one) for one in given]
    RUN[name]([] if is_in_place else inputs, given if how.keeps else [], results, ORDER, *settings)
    return results


wait_tensors = torch.ops.torchcomms.torchcomm_wait_tensors
wait_tensors_ = torch.ops.torchcomms.torchcomm_await_tensors_
