"""Operations in compiled functions. Dynamo traces this code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchcomms._options import Hints
from torchcomms._work import WorkStatus
from torchcomms.functional import operators
from torchcomms.functional.durations import traced_seconds
from torchcomms.functional.gradients import Exchange, Settings, assign, detached, needs_gradient
from torchcomms.functional.operations import OPERATIONS, WINDOW_OPERATIONS, Operation

if TYPE_CHECKING:
    from torchcomms._call import Call
    from torchcomms._comm import TorchComm
    from torchcomms._window import TorchCommWindow


class TracedWork:
    """A work in a compiled function. It can be used as the operation's result as well; that waits.

    The tensors of an asynchronous operation change when it is waited for. A compiled function may return it.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        ticket: torch.Tensor | None,
        targets: list[torch.Tensor],
        inputs: list[torch.Tensor],
        settings: Sequence[Any],
        is_recorded: bool,
    ) -> None:
        self._kind = kind
        self._name = name
        self._ticket = ticket
        self._targets = targets
        self._inputs = inputs
        self._settings = settings
        self._is_recorded = is_recorded
        self._results = targets

    def wait(self) -> Any:
        """Waits for the operation, and returns its result."""
        ticket = self._ticket
        if ticket is not None:
            self._ticket = None
            self._finish(ticket)
        return self._result()

    def wait_blocking(self) -> Any:
        """As :meth:`wait`."""
        return self.wait()

    def is_completed(self) -> bool:
        """Whether it was waited for."""
        return self._ticket is None

    @property
    def status(self) -> WorkStatus:
        """Its state: completed when it was waited for."""
        return WorkStatus.COMPLETED if self._ticket is None else WorkStatus.INPROGRESS

    def _finish(self, ticket: torch.Tensor) -> None:
        if not self._targets:
            operators.wait_tensors_([], ticket, operators.ORDER)
        elif self._is_recorded:
            targets = detached(self._targets)
            self._results = list(
                Exchange.apply(
                    self._name, "wait", ticket, len(targets), *self._settings, *targets, *self._inputs
                )
            )
            _assign_all(self._targets, self._results)
        else:
            with torch.no_grad():
                for target, result in zip(
                    self._targets, operators.wait_tensors(detached(self._targets), ticket)
                ):
                    target.copy_(result)

    def _result(self) -> Any:
        if self._kind == "list":
            return self._results
        return self._results[0] if self._results else None

    # --- use as a result -------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.wait(), name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(
            *[_waited(one) for one in args], **{key: _waited(one) for key, one in (kwargs or {}).items()}
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wait())

    def __len__(self) -> int:
        return len(self.wait())

    def __getitem__(self, index: Any) -> Any:
        return self.wait()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.wait()[index] = value

    def __bool__(self) -> bool:
        return True if self._kind == "none" else bool(self.wait())

    def __neg__(self) -> Any:
        return -self.wait()

    def __add__(self, other: Any) -> Any:
        return self.wait() + _waited(other)

    def __radd__(self, other: Any) -> Any:
        return other + self.wait()

    def __sub__(self, other: Any) -> Any:
        return self.wait() - _waited(other)

    def __rsub__(self, other: Any) -> Any:
        return other - self.wait()

    def __mul__(self, other: Any) -> Any:
        return self.wait() * _waited(other)

    def __rmul__(self, other: Any) -> Any:
        return other * self.wait()

    def __truediv__(self, other: Any) -> Any:
        return self.wait() / _waited(other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.wait()

    def __pow__(self, other: Any) -> Any:
        return self.wait() ** _waited(other)

    def __matmul__(self, other: Any) -> Any:
        return self.wait() @ _waited(other)

    def __rmatmul__(self, other: Any) -> Any:
        return other @ self.wait()


def issue(comm: TorchComm, call: Call) -> TracedWork:
    """An operation of a communicator in a compiled function."""
    name = call.op.name
    how = OPERATIONS[name]
    is_used = not how.root_only or comm.get_rank() == call.peer
    targets = _tensors(call.output) if how.root_only != "output" or is_used else []
    inputs = _tensors(call.input) if how.root_only != "input" or is_used else []
    reduce = call.reduce
    factor = None if reduce is None else reduce._factor
    settings = Settings(
        comm._graph_handle,
        call.peer,
        "" if reduce is None else reduce._type.name,
        float(factor) if isinstance(factor, (int, float)) else None,
        factor if isinstance(factor, torch.Tensor) else None,
        list(call.input_split_sizes or ()),
        list(call.output_split_sizes or ()),
        flat_hints(call.hints),
        traced_seconds(call.timeout),
    )
    kind = how.output if targets else "none"
    return _issue(kind, name, how, call.async_op, targets, inputs, settings)


def issue_on_window(
    window: TorchCommWindow,
    name: str,
    tensor: torch.Tensor | None,
    peer: int,
    offset: int,
    async_op: bool,
    hints: Hints,
    timeout: Any,
) -> TracedWork:
    """An operation of a window in a compiled function."""
    how = WINDOW_OPERATIONS[name]
    tensors = _tensors(tensor)
    settings = (window._graph_handle, peer, offset, flat_hints(hints), traced_seconds(timeout))
    targets = tensors if how.output == "one" else []
    inputs = tensors if how.input == "one" else []
    return _issue(how.output, name, how, async_op, targets, inputs, settings)


def _issue(
    kind: str,
    name: str,
    how: Operation,
    async_op: bool,
    targets: list[torch.Tensor],
    inputs: list[torch.Tensor],
    settings: Sequence[Any],
) -> TracedWork:
    is_recorded = needs_gradient(name, inputs)
    ticket, results = None, targets
    if async_op:
        with torch.no_grad():
            given = [] if how.input == "output" else detached(inputs)
            ticket = operators.START[name](given, detached(targets), operators.ORDER, *settings)
    elif is_recorded:
        like = detached(targets)
        results = list(Exchange.apply(name, "run", None, len(like), *settings, *like, *inputs))
        _assign_all(targets, results)
    else:
        with torch.no_grad():
            results = operators.run_operation(name, how, detached(inputs), detached(targets), settings)
            for target, result in zip(targets, results):
                target.copy_(result)
        results = targets
    work = TracedWork(kind, name, ticket, targets, inputs, settings, is_recorded)
    work._results = results
    return work


def _assign_all(targets: list[torch.Tensor], results: list[torch.Tensor]) -> None:
    for target, result in zip(targets, results):
        assign(target, result)


def _tensors(given: Any) -> list[torch.Tensor]:
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        return [_waited(one) for one in given]
    return list(_waited(given)) if isinstance(_waited(given), list) else [_waited(given)]


def _waited(one: Any) -> Any:
    return one.wait() if isinstance(one, TracedWork) else one


def flat_hints(hints: Hints) -> list[str]:
    """Hints as operators take them: names and values in turn."""
    flat: list[str] = []
    for name, value in (hints or {}).items():
        flat.append(name)
        flat.append(str(value))
    return flat
