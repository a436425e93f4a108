"""Reductions that go on with whoever is left."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pccl

# How often a reduction is tried again although nobody has gone: links may break and heal.
_FRUITLESS_MAX = 6


@dataclass(frozen=True)
class Reduced:
    """What came of a reduction."""

    worlds: tuple[int, ...]
    """For each tensor, how many peers its result is of. They differ only if a peer died in between."""
    tx_bytes: int
    """Payload that was sent for it."""
    rx_bytes: int
    """Payload that was received for it."""

    @property
    def world_size(self) -> int:
        """How many peers every result is of at the least."""
        return min(self.worlds, default=1)


@dataclass(eq=False)
class Operand:
    """One tensor of a reduction, and how far it is."""

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


def reduce_one(communicator: pccl.Communicator, operand: Operand) -> Reduced | None:
    """Reduces one tensor without a detour, since most calls are that. Nothing if it has to be tried again."""
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
            return Reduced((1,), 0, 0)
        if not may_pass(error):
            raise
        return None
    return Reduced((info.local_world_size,), info.tx_bytes, info.rx_bytes)


class Reducing:
    """A reduction in flight. It must be waited for before the step ends: peers vote at the boundary, and nobody votes
    while something is in flight (``Run.at_boundary`` is for those who want to wait only then)."""

    def __init__(
        self,
        communicator: pccl.Communicator,
        blocking: Callable[[], AbstractContextManager[None]],
        operands: Sequence[Operand],
        max_in_flight: int,
    ) -> None:
        self._communicator = communicator
        self._blocking = blocking
        self._operands = list(operands)
        self._max_in_flight = max(1, max_in_flight)
        self._flying: deque[Operand] = deque()
        self._moved = [0, 0]
        self._launch_failure: pccl.PCCLError | None = None
        with self._blocking():
            self._launch(self._operands[: self._max_in_flight])

    def done(self) -> bool:
        """Whether all that was launched has ended; ``wait`` may still have to try again, or to launch what is left."""
        return all(operand.handle is None or operand.handle.done() for operand in self._flying)

    def wait(self) -> Reduced:
        """Waits for all results. What failed because a peer or a link was lost is tried again with the same data, by
        all peers alike. A peer that is alone in its group has its own data as the result."""
        fruitless = 0
        world = sys.maxsize
        with self._blocking():
            while True:
                failure = self._round()
                if failure is None and not self._redo_uneven():
                    break
                if failure is None:
                    continue
                before, world = world, self._communicator.world_size
                fruitless = 0 if world < before else fruitless + 1
                if not may_pass(failure) or fruitless > _FRUITLESS_MAX:
                    raise failure
                if fruitless > 1:
                    time.sleep(min(0.02 * 2**fruitless, 1.0))
        worlds = tuple(operand.world or 1 for operand in self._operands)
        return Reduced(worlds, self._moved[0], self._moved[1])

    def _round(self) -> pccl.PCCLError | None:
        """Brings what has no result yet to an end, be it a failure: after one, all that is in flight ends before
        anything is tried again, so that peers agree on what is left to do."""
        failure, self._launch_failure = self._launch_failure, None
        todo = deque(o for o in self._operands if o.world is None and o not in self._flying)
        while self._flying or (todo and failure is None):
            if todo and failure is None and len(self._flying) < self._max_in_flight:
                self._launch([todo.popleft()])
                failure, self._launch_failure = self._launch_failure, None
                continue
            operand = self._flying.popleft()
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
                self._flying.append(operand)

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
        """Results out of place are made again until all are of the same peers. In place the data is gone by then."""
        least = min((operand.world or 1 for operand in self._operands), default=1)
        uneven = [o for o in self._operands if (o.world or 1) > least and not o.in_place]
        for operand in uneven:
            operand.world = None
        return bool(uneven)


def may_pass(error: pccl.PCCLError) -> bool:
    """Whether the same call of all peers may succeed the next time: a peer or a link was lost, and it was nobody's
    mistake. A timeout is not retried: the first peer to give up would leave, and the other one would go on alone, as
    if nothing had been wrong."""
    return error.is_retryable and error.kind != "timeout"


def _keep_own(operand: Operand) -> None:
    """Alone, the result is one's own data."""
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
