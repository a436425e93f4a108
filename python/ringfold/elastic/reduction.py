"""Reductions that are retried with the remaining peers."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pccl

# Retries of a reduction without a change of the world: a link may break and recover.
_RETRIES_MAX = 6


@dataclass(frozen=True)
class ReductionResult:
    """The result of a reduction."""

    worlds: tuple[int, ...]
    """The number of participants for each tensor. They differ only if a peer died in between."""
    tx_bytes: int
    """Payload bytes sent."""
    rx_bytes: int
    """Payload bytes received."""

    @property
    def world_size(self) -> int:
        """The least number of participants."""
        return min(self.worlds, default=1)


@dataclass(eq=False)
class Operand:
    """One tensor of a reduction, and its progress."""

    send: Any
    recv: Any
    tag: int
    op: pccl.ReduceOp
    weight: float | None = None
    quantization: pccl.QuantizationOptions | None = None
    handle: pccl.AsyncReduceHandle | None = None
    world: int | None = None

    @property
    def in_place(self) -> bool:
        return self.recv is self.send


def reduce_one(communicator: pccl.Communicator, operand: Operand) -> ReductionResult | None:
    """Reduces one tensor, the most frequent case. None if it must be retried."""
    try:
        info = communicator.all_reduce(
            operand.send,
            operand.recv,
            op=operand.op,
            tag=operand.tag,
            quantization_options=operand.quantization,
            weight=operand.weight,
        )
    except pccl.PCCLError as error:
        if error.result == pccl.Result.TOO_FEW_PEERS:
            _keep_own(operand)
            return ReductionResult((1,), 0, 0)
        if not can_retry(error) and error.kind != "removed":
            raise
        return None
    return ReductionResult((info.local_world_size,), info.tx_bytes, info.rx_bytes)


class PendingReduction:
    """A reduction in flight. Wait for it before the step ends: no vote is possible while a reduction is in flight.
    ``Run.at_boundary`` waits as late as possible."""

    def __init__(
        self,
        communicator: pccl.Communicator,
        blocking: Callable[[], AbstractContextManager[None]],
        operands: Sequence[Operand],
        max_in_flight: int,
        joins_after: Callable[[pccl.PCCLError], bool] = lambda _: False,
    ) -> None:
        self._communicator = communicator
        self._joins_after = joins_after
        self._blocking = blocking
        self._operands = list(operands)
        self._max_in_flight = max(1, max_in_flight)
        self._in_flight: deque[Operand] = deque()
        self._moved = [0, 0]
        self._launch_failure: pccl.PCCLError | None = None
        with self._blocking():
            self._launch(self._operands[: self._max_in_flight])

    def _add(self, operand: Operand) -> None:
        """Reduces another tensor, too. All peers add the same ones, in any order."""
        self._operands.append(operand)
        if len(self._in_flight) < self._max_in_flight and self._launch_failure is None:
            with self._blocking():
                self._launch([operand])

    def done(self) -> bool:
        """Whether all started operations have ended; ``wait`` may still have to retry, or to start more."""
        return all(operand.handle is None or operand.handle.done() for operand in self._in_flight)

    def wait(self) -> ReductionResult:
        """Waits for all results. Operations that failed because a peer or link was lost are retried with the same data, by
        all peers. For a single peer the result is its own data."""
        retries = 0
        world = sys.maxsize
        with self._blocking():
            while True:
                failure = self._round()
                if failure is None and not self._redo_uneven():
                    break
                if failure is None:
                    continue
                if self._joins_after(failure):
                    for operand in self._operands:
                        if operand.world is None:
                            _keep_own(operand)
                    break
                before, world = world, self._communicator.world_size
                retries = 0 if world < before else retries + 1
                if not can_retry(failure) or retries > _RETRIES_MAX:
                    raise failure
                if retries > 1:
                    time.sleep(min(0.02 * 2**retries, 1.0))
        worlds = tuple(operand.world or 1 for operand in self._operands)
        return ReductionResult(worlds, self._moved[0], self._moved[1])

    def _round(self) -> pccl.PCCLError | None:
        """Runs all operations without a result. After a failure all operations in flight end before a retry, so that peers
        agree on the remaining ones."""
        failure, self._launch_failure = self._launch_failure, None
        todo = deque(o for o in self._operands if o.world is None and o not in self._in_flight)
        while self._in_flight or (todo and failure is None):
            if todo and failure is None and len(self._in_flight) < self._max_in_flight:
                self._launch([todo.popleft()])
                failure, self._launch_failure = self._launch_failure, None
                continue
            operand = self._in_flight.popleft()
            failure = self._finish(operand) or failure
        return failure

    def _launch(self, operands: Sequence[Operand]) -> None:
        for operand in operands:
            try:
                operand.handle = self._communicator.all_reduce_async(
                    operand.send,
                    operand.recv,
                    op=operand.op,
                    tag=operand.tag,
                    quantization_options=operand.quantization,
                    weight=operand.weight,
                )
            except pccl.PCCLError as error:
                if error.result != pccl.Result.TOO_FEW_PEERS:
                    self._launch_failure = error
                    return
                _keep_own(operand)
            else:
                self._in_flight.append(operand)

    def _finish(self, operand: Operand) -> pccl.PCCLError | None:
        handle, operand.handle = operand.handle, None
        assert handle is not None
        succeeded, _status, info = handle.wait()
        if succeeded:
            operand.world = info.local_world_size
            self._moved[0] += info.tx_bytes
            self._moved[1] += info.rx_bytes
            return None
        error = handle.error
        assert error is not None
        if error.result == pccl.Result.TOO_FEW_PEERS:
            _keep_own(operand)
            return None
        return error

    def _redo_uneven(self) -> bool:
        """Repeats out-of-place results until all have the same participants. In place the input is lost by then."""
        least = min((operand.world or 1 for operand in self._operands), default=1)
        uneven = [o for o in self._operands if (o.world or 1) > least and not o.in_place]
        for operand in uneven:
            operand.world = None
        return bool(uneven)


def can_retry(error: pccl.PCCLError) -> bool:
    """Whether a retry may succeed: a peer or a link was lost. A timeout is not retried: the first peer to give up would
    leave, and the others would continue as if nothing had been wrong."""
    return error.is_retryable and error.kind != "timeout"


def _keep_own(operand: Operand) -> None:
    """Copies the input: the result of a single peer."""
    operand.world = 1
    if operand.in_place:
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(operand.recv, torch.Tensor):
        operand.recv.detach().view(-1).copy_(operand.send.detach().reshape(-1))
    elif hasattr(operand.recv, "reshape"):
        operand.recv.reshape(-1)[...] = operand.send.reshape(-1)
    else:
        memoryview(operand.recv).cast("B")[:] = memoryview(operand.send).cast("B")
