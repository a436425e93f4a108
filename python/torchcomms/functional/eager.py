"""Operations outside of compiled functions, in enabled mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchcomms._work import TorchWork, WorkStatus
from torchcomms.functional import operators, originals, pending, tickets
from torchcomms.functional.async_tensor import (
    TorchCommsAsyncList,
    TorchCommsAsyncTensor,
    Waitable,
    settled,
)
from torchcomms.functional.durations import traced_seconds
from torchcomms.functional.gradients import Exchange, Settings, assign, detached, needs_gradient
from torchcomms.functional.operations import OPERATIONS
from torchcomms.functional.traced import flat_hints

if TYPE_CHECKING:
    from torchcomms._call import Call
    from torchcomms._comm import TorchComm


def issue(comm: TorchComm, call: Call) -> Any:
    """Runs an operation, and records it if a gradient is wanted. An asynchronous one gives its result."""
    call.input, call.output = settled(call.input), settled(call.output)
    name = call.op.name
    how = OPERATIONS.get(name)
    if how is None:
        return originals.issue(comm, call)
    inputs = _tensors(call.input)
    if needs_gradient(name, inputs):
        return _record(comm, call, inputs)
    work = originals.issue(comm, call)
    is_used = how.root_only != "output" or comm.get_rank() == call.peer
    if not call.async_op or not is_used:
        return work
    return as_result(how.output, _tensors(call.output), work)


def as_result(kind: str, tensors: list[torch.Tensor], work: Waitable) -> Any:
    """The value of an asynchronous operation: its result, or only its work if it has none."""
    if kind == "none":
        return work
    pending.remember(tensors, work)
    return TorchCommsAsyncList(tensors, work) if kind == "list" else TorchCommsAsyncTensor(tensors[0], work)


class RecordedWork:
    """The work of an operation with a gradient. Its end writes the results into the tensors that the program passed."""

    def __init__(self, work: TorchWork, results: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
        self._work = work
        self._results = results
        self._targets = targets

    def wait(self) -> None:
        """Waits for the end, and raises its error."""
        self._work.wait()
        self._assign()

    def wait_blocking(self) -> None:
        """Waits until the result is in memory."""
        self._work.wait_blocking()
        self._assign()

    def is_completed(self) -> bool:
        """Whether it has ended or failed."""
        return self._work.is_completed()

    @property
    def status(self) -> WorkStatus:
        """Its state."""
        return self._work.status

    def _assign(self) -> None:
        targets, self._targets = self._targets, []
        for target, result in zip(targets, self._results):
            assign(target, result)


def _record(comm: TorchComm, call: Call, inputs: list[torch.Tensor]) -> Any:
    name, targets = call.op.name, _tensors(call.output)
    how, reduce = OPERATIONS[name], call.reduce
    factor = None if reduce is None else reduce.factor
    settings = Settings(
        comm._graph_handle,
        call.peer,
        "" if reduce is None else reduce.type.name,
        None if factor is None or isinstance(factor, torch.Tensor) else float(factor),
        factor if isinstance(factor, torch.Tensor) else None,
        list(call.input_split_sizes or ()),
        list(call.output_split_sizes or ()),
        flat_hints(call.hints),
        traced_seconds(call.timeout),
    )
    like = detached(targets)
    if not call.async_op:
        results = Exchange.apply(name, "run", None, len(like), *settings, *like, *inputs)
        RecordedWork(TorchWork(), list(results), targets).wait()
        return TorchWork()
    given = [] if how.input == "output" else detached(inputs)
    with torch.no_grad():
        ticket = operators.START[name](given, like, operators.ORDER, *settings)
    results = list(Exchange.apply(name, "return", ticket, len(like), *settings, *like, *inputs))
    return as_result(how.output, results, RecordedWork(tickets.take(ticket).work, results, targets))


def _tensors(given: Any) -> list[torch.Tensor]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]
