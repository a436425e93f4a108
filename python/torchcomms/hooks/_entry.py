"""The entry of one operation in a flight recorder."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcomms._op_name import OpName
from torchcomms._work import TorchWork, WorkEvent

if TYPE_CHECKING:
    import torch

    from torchcomms.hooks._recorded_comm import RecordedComm

# The names of torch's own recorders.
_DTYPES = {
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "bool": "Bool",
    "bfloat16": "BFloat16",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}

_P2P = frozenset({OpName.send, OpName.recv, OpName.batch_op_issue})

Shapes = tuple[tuple[int, ...], ...]
Dtypes = tuple["torch.dtype", ...]


class Transfer(NamedTuple):
    """A tensor sent from rank to rank. Both ends count per pair and direction, so they agree on ``number``."""

    src: int
    dst: int
    number: int
    is_send: bool
    shape: tuple[int, ...]
    dtype: torch.dtype | None


class Entry:
    """One operation. It holds shapes and types of its tensors, but not the tensors."""

    # Class attributes: most entries never change them.
    started_ns: int | None = None
    completed_ns: int | None = None
    error: str | None = None
    is_rejected = False
    work: Callable[[], TorchWork | None] | None = None
    input_splits: list[int] | None = None
    output_splits: list[int] | None = None
    ranks: tuple[int, ...] = ()
    """The ranks of a split."""
    split_number = 0
    """The number of earlier splits with the same ranks."""
    transfers: tuple[Transfer, ...] = ()
    """The transfers of a send, receive or batch."""

    record_id: int
    collective_seq: int
    p2p_seq: int
    thread: tuple[int, str]
    timeout_ms: int
    input_shapes: Shapes
    output_shapes: Shapes
    input_dtypes: Dtypes
    output_dtypes: Dtypes

    def __init__(self, group: RecordedComm, op: OpName, op_id: int, is_async: bool) -> None:
        self.created_ns = time.time_ns()
        self.group = group
        self.op = op
        self.op_id = op_id
        self.is_async = is_async
        self.is_p2p = op in _P2P
        # Whether all ranks have to make this call, so that it has a collective sequence number.
        self.is_collective = not self.is_p2p and op is not OpName.split

    def follow(self, work: TorchWork) -> None:
        """Records the end of a work when it comes."""
        self.start()
        if work._pending is None:
            self.end(work._error)
        else:
            self.work = weakref.ref(work)
            work._listen(self._on_event)

    def start(self) -> None:
        if self.started_ns is None:
            # A synchronous call starts the operation at once.
            self.started_ns = time.time_ns() if self.is_async else self.created_ns
            self.group.note_start(self)

    def end(self, error: BaseException | None, at_ns: int | None = None) -> None:
        if self.completed_ns is not None or self.error is not None:
            return
        if error is None:
            self.completed_ns = max(at_ns or time.time_ns(), self.created_ns + 1)
            self.group.note_end(self)
        else:
            self.error = f"{type(error).__name__}: {error}"
        self.work = None

    def reject(self, error: BaseException) -> None:
        """Records that it was never started."""
        self.end(error)
        self.is_rejected = True
        self.started_ns = None

    def update(self) -> None:
        """Checks whether the work has ended."""
        work = self.work and self.work()
        if work is not None:
            work.is_completed()

    def _on_event(self, event: WorkEvent) -> None:
        if event != "end":
            return
        work = self.work and self.work()
        self.end(None if work is None else work._error)

    def to_dict(self) -> dict[str, Any]:
        """The entry as it is dumped."""
        state = "completed" if self.completed_ns else "started" if self.started_ns else "scheduled"
        fields: dict[str, Any] = {
            "record_id": self.record_id,
            "pg_id": self.group.pg_id,
            "process_group": [self.group.name, self.group.backend],
            "collective_seq_id": self.collective_seq,
            "p2p_seq_id": self.p2p_seq,
            "op_id": self.op_id,
            "profiling_name": f"{self.group.backend}:{self.op.name}",
            "time_created_ns": self.created_ns,
            "time_discovered_started_ns": self.started_ns,
            "time_discovered_completed_ns": self.completed_ns,
            "input_sizes": sizes(self.input_shapes),
            "input_dtypes": [dtype_name(dtype) for dtype in self.input_dtypes],
            "output_sizes": sizes(self.output_shapes),
            "output_dtypes": [dtype_name(dtype) for dtype in self.output_dtypes],
            "state": state,
            "retired": self.completed_ns is not None,
            "timeout_ms": self.timeout_ms,
            "is_p2p": self.is_p2p,
            "thread_id": str(self.thread[0]),
            "thread_name": self.thread[1],
        }
        if self.completed_ns is not None:
            fields["duration_ms"] = (self.completed_ns - (self.started_ns or self.created_ns)) / 1e6
        if self.error is not None:
            fields["error"] = self.error
        if self.op is OpName.send or self.op is OpName.recv:
            fields["peer"] = self.transfers[0].dst if self.op is OpName.send else self.transfers[0].src
        return fields


def sizes(shapes: Shapes) -> list[list[int]]:
    """Shapes, as they are dumped."""
    return [list(shape) for shape in shapes]


def dtype_name(dtype: torch.dtype | None) -> str:
    """The name of an element type in torch's recorders: ``Float``, ``Long``."""
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)
