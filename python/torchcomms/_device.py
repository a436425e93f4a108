"""Collectives as kernels on CUDA devices, on torch's streams.

Operations on CUDA tensors are queued on the current stream and never block the host; CUDA graphs can capture them. They are
staged through pinned host memory (:mod:`torchcomms._staging`) if a rank has no device or no compiler, or if ranks are on several
hosts, except all-reduces.
Needs torch, so it is imported with the first communicator.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from ringfold import _native
from ringfold._error import GroupError, PortError

from torchcomms._dtypes import REDUCED
from torchcomms._reduce_op import RedOpType, ReduceOp
from torchcomms._task import Task, Tensors, spans
from torchcomms._work import TorchWork

_log = logging.getLogger("torchcomms")

# The number of asynchronous calls from which on finished ones are looked for.
_HELD_MIN = 8
# The queue of all operations that are not transfers.
_COLLECTIVES = ("", -1)
# The engine's numbers of reductions of real types without a factor, and the size of an element.
_FAST = {
    key: (*numbers, key[0].itemsize)
    for key, numbers in REDUCED.items()
    if not key[0].is_complex and key[1] is not RedOpType.PREMUL_SUM
}
# Queues a call on a stream, or on the second one after it.
_Queue = Callable[[int, int | None], "_native.DeviceCall | None"]
# The limit for queued kernels when the host waits for them. Kernels also have their own deadline.
_SYNCHRONIZE_SECONDS = 3600.0

# Tensors of calls that had not ended when their communicator was closed.
_unfinished: list[tuple[_native.DeviceCall, object]] = []
# The reasons that were logged.
_logged: set[str] = set()


class Device:
    """This rank's device in a group of devices of all ranks."""

    def __init__(
        self, group: _native.DeviceGroup, device: torch.device, rank: int, size: int, is_urgent: bool
    ) -> None:
        self._group = group
        self._device = device
        self._rank = rank
        self._size = size
        self._is_urgent = is_urgent
        # The streams of asynchronous operations by priority: one for collectives, and one for each direction to each rank.
        self._streams: dict[tuple[str, int, bool], torch.cuda.Stream] = {}
        # Tensors of asynchronous calls that have not ended: the allocator must not reuse them.
        self._held: deque[tuple[_native.DeviceCall, object]] = deque()
        # Those of the last capture, until they are waited for: the graph's memory must not be used again before they have ended.
        self._capture: int | None = None
        self._captured: dict[DeviceWork, object] = {}
        _open.add(self)

    @classmethod
    def open(cls, group: _native.Group, device: torch.device | None, is_urgent: bool) -> Device | None:
        """Connects the devices; all ranks call this. None if a rank has no usable device; the log says why."""
        ordinal = _ordinal(device)
        try:
            joined = _native.DeviceGroup.open(group, ordinal, None, _cache())
        except PortError as error:
            if ordinal >= 0:
                _warn_once(f"staging CUDA tensors through host memory: no collectives on the device: {error}")
            return None
        return cls(joined, torch.device("cuda", joined.ordinal), group.rank, group.world, is_urgent)

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def place(self) -> tuple[int, int]:
        """This rank, and the number of ranks."""
        return self._rank, self._size

    @property
    def native(self) -> _native.DeviceGroup:
        return self._group

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are on one host. Otherwise only all-reduces run on the devices."""
        return self._group.is_on_one_host

    def takes(self, task: Task) -> bool:
        """Whether the device runs this task. All ranks answer alike for the same operation."""
        if task.native == "barrier":
            # Otherwise the host waits, as for all barriers.
            return self.is_on_one_host and is_capturing()
        device = task.device
        if device is None or device.type != "cuda":
            return False
        if device != self._device:
            raise RuntimeError(
                f"invalid device {device} of the tensors: the communicator is on {self._device}"
            )
        # Between hosts all other operations are staged.
        return self.is_on_one_host or task.native == "all_reduce"

    def issue(self, task: Task, async_op: bool) -> TorchWork:
        """Queues a task: on the current stream, or, with ``async_op``, on a stream of our own."""
        if task.is_transfer:
            return self.issue_batch([task], async_op)
        inputs = self._inputs(task)
        queue = partial(
            self._group.run,
            *(task.native, task.dtype, task.reduce, task.peer, task.counts, task.others),
            *(spans(inputs), spans(task.outputs), task.timeout),
        )
        return self.queue(queue, _COLLECTIVES, (inputs, task.outputs), async_op, task.is_urgent)

    def issue_batch(self, tasks: Sequence[Task], async_op: bool) -> TorchWork:
        """Queues sends and receives together."""
        batch, tensors = [], []
        for task in tasks:
            is_send = bool(task.inputs)
            tensor = (task.inputs or task.outputs)[0]
            batch.append((is_send, task.peer, tensor.data_ptr(), tensor.nbytes, task.dtype))
            tensors.append(tensor)
        queue = partial(self._group.transfer, batch, tasks[0].timeout)
        key = (tasks[0].native, tasks[0].peer)
        return self.queue(queue, key, tensors, async_op, tasks[0].is_urgent)

    def all_reduce_now(self, tensor: torch.Tensor, op: ReduceOp, async_op: bool) -> TorchWork | None:
        """Queues an all-reduce, faster than :meth:`issue`. None if that has to check more, or to handle a failure."""
        numbers = _FAST.get((tensor.dtype, op.type))
        if numbers is None or not tensor.is_contiguous() or tensor.get_device() != self._device.index:
            return None
        dtype, reduce, nbytes = numbers
        address, count = tensor.data_ptr(), tensor.nbytes // nbytes
        try:
            if async_op:
                queue = partial(self._group.all_reduce, address, address, count, dtype, reduce, None)
                return self.queue(queue, _COLLECTIVES, tensor, True)
            stream = torch._C._cuda_getCurrentRawStream(self._device.index)
            self._group.all_reduce(address, address, count, dtype, reduce, None, stream, None)
        except GroupError:
            return None
        return TorchWork()

    def queue(
        self,
        queue: _Queue,
        key: tuple[str, int],
        tensors: object,
        async_op: bool,
        is_urgent: bool | None = None,
    ) -> TorchWork:
        """Queues a call on the current stream, or on the stream of this key, which then follows the current one."""
        # The raw handle: a stream object costs microseconds.
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        if not async_op:
            queue(stream, None)
            return TorchWork()
        if torch._C._cuda_isCurrentStreamCapturing():
            # Transfers get a branch of the graph: those of other ranks may be captured in another order.
            call = queue(stream, None if key is _COLLECTIVES else stream)
            if call is None:
                return TorchWork()
            if call.capture != self._capture:
                self._capture, self._captured = call.capture, {}
            work = DeviceWork(
                self._device.index, torch.cuda.current_stream(self._device), call, self._captured
            )
            self._captured[work] = tensors
            return work
        kind = (*key, self._is_urgent if is_urgent is None else is_urgent)
        own = self._streams.get(kind) or self._new_stream(kind)
        call = queue(stream, own.cuda_stream)
        assert call is not None
        held = self._held
        held.append((call, tensors))
        # Each query costs time.
        if len(held) >= _HELD_MIN:
            self._release_held()
        return DeviceWork(self._device.index, own, call)

    def _release_held(self) -> None:
        """Releases the tensors of calls that have ended. Several threads may do that."""
        held = self._held
        while held:
            try:
                oldest = held.popleft()
            except IndexError:
                return
            if not oldest[0].done():
                held.appendleft(oldest)
                return

    def synchronize(self) -> None:
        """Waits for all queued kernels.

        An allocation by the host may wait for kernels, so these must not wait for what the host does next.
        """
        self._group.synchronize(_SYNCHRONIZE_SECONDS)

    def register(self, tensor: torch.Tensor) -> None:
        """Registers the memory of a tensor. The log says if that is not possible."""
        try:
            self._group.register(tensor.data_ptr(), tensor.nbytes)
        except PortError as error:
            _warn_once(f"large operations on a tensor go through staging areas: {error}")

    def deregister(self, tensor: torch.Tensor) -> None:
        """Makes the other ranks close the memory of a tensor."""
        self._group.deregister(tensor.data_ptr(), tensor.nbytes)

    def is_registered(self, tensor: torch.Tensor) -> bool:
        """Whether all ranks have opened the memory of a tensor."""
        return self._group.is_registered(tensor.data_ptr(), tensor.nbytes)

    def set_timeout(self, seconds: float) -> None:
        self._group.set_timeout(seconds)

    def set_urgent(self, is_urgent: bool) -> None:
        """Sets the priority of the stream of later asynchronous operations."""
        self._is_urgent = is_urgent

    def state(self) -> tuple[BaseException | None, int | None]:
        """Why the group has failed, and how many operations are unfinished; None if that is unknown."""
        failure = _failure_of(self._group)
        return failure, None if failure is not None else self._group.unfinished()

    def close(self) -> None:
        """Waits a moment for queued kernels, and frees the device."""
        _open.discard(self)
        self._group.close()
        # Other ranks may be late: what they have yet to read is kept until the process ends.
        self._release_held()
        _unfinished.extend(self._held)

    def _new_stream(self, key: tuple[str, int, bool]) -> torch.cuda.Stream:
        stream = torch.cuda.Stream(self._device, priority=-1 if key[2] else 0)  # type: ignore[no-untyped-call]
        self._streams[key] = stream
        return stream

    def _inputs(self, task: Task) -> Tensors:
        """The inputs of a task. Those that the operation would overwrite too early are copied."""
        if task.native == "all_gather" and len(task.outputs) == 1:
            source, whole = task.inputs[0], task.outputs[0]
            own = whole.data_ptr() + self._rank * source.nbytes
            if source.data_ptr() != own and _overlap(source, whole):
                return (source.clone(),)
        return task.inputs


def _warn_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        _log.warning("%s", text)


# The devices that are not closed.
_open: weakref.WeakSet[Device] = weakref.WeakSet()


def synchronize_devices(seconds: float) -> None:
    """Waits up to so many seconds for all work on devices that are not closed, also that of graphs.

    The kernels of a process end with it, and kernels of other ranks would wait for them until their timeout.
    """
    devices = {device._device for device in _open}
    if not devices:
        return

    def wait() -> None:
        for device in devices:
            # A failed device has no pending work.
            with contextlib.suppress(Exception):
                torch.cuda.synchronize(device)

    thread = threading.Thread(target=wait, name="torchcomms-end", daemon=True)
    thread.start()
    thread.join(seconds)


class DeviceWork(TorchWork):
    """An operation on a stream of our own. ``wait()`` makes the current stream wait for it, not the host."""

    __slots__ = ("_call", "_captured", "_device", "stream")

    _is_on_device = True

    def __init__(
        self,
        device: int,
        stream: torch.cuda.Stream,
        call: _native.DeviceCall,
        captured: dict[DeviceWork, object] | None = None,
    ) -> None:
        super().__init__(call)
        self._device = device
        self._call = call
        # The tensors of captured operations, this one among them.
        self._captured = captured
        self.stream = stream
        """The stream that it is queued on."""

    def wait(self) -> None:
        """Orders later work of the current stream after it. Raises its error, if it is known."""
        if self._pending is not None or self._captured is not None:
            try:
                self._call.order_after(torch._C._cuda_getCurrentRawStream(self._device))
            except GroupError:
                # What failed may have been a later operation.
                self._settle(None)
            if self._captured is not None:
                self._captured.pop(self, None)
                self._captured = None
        if self._pending is None:
            super().wait()
        elif self._listeners:
            self.is_completed()
            self._notify("wait")

    def wait_blocking(self) -> None:
        """Waits until the result is in device memory."""
        self._settle(None)
        super().wait()


def _failure_of(group: _native.DeviceGroup) -> BaseException | None:
    """Why the group has failed; None if it works, or was closed."""
    try:
        failure = group.failure()
    except GroupError:
        # It was closed regularly.
        return None
    return None if failure is None or failure.kind == "left" else failure


def is_capturing() -> bool:
    """Whether the current stream is being captured in a CUDA graph."""
    # The first is quick, and false where no GPU is used.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def refuse_capture(what: str) -> None:
    """Raises during a capture: what the host does is not part of the graph."""
    if is_capturing():
        raise RuntimeError(
            f"unsupported in a CUDA graph: {what} needs the host here, which a replay does not run; call it once before the "
            "capture if it is the first collective on CUDA tensors, otherwise outside of the graph"
        )


def _ordinal(device: torch.device | None) -> int:
    if device is None or device.type != "cuda" or not torch.cuda.is_available():
        return -1
    return torch.cuda.current_device() if device.index is None else device.index


def _cache() -> str | None:
    """The folder of compiled kernels."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:
        return None
    return str(folder / "ringfold" / "kernels")


def _overlap(part: torch.Tensor, whole: torch.Tensor) -> bool:
    return (
        part.data_ptr() < whole.data_ptr() + whole.nbytes and whole.data_ptr() < part.data_ptr() + part.nbytes
    )
