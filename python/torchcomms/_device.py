"""Collectives as kernels on CUDA devices, on torch's streams.

Collectives of CUDA tensors are queued on the current stream and never block the host; CUDA graphs can capture them. Sends and
receives are staged through pinned host memory (:mod:`torchcomms._staging`), as is everything if a rank has no device, no
compiler, or is on another host. Needs torch, so it is imported with the first communicator.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from pathlib import Path

import torch
from ringfold import _native
from ringfold._error import GroupError, PortError

from torchcomms._task import Task, spans
from torchcomms._work import TorchWork

_log = logging.getLogger("torchcomms")

# The sizes of the engine's element types, by their numbers.
_BYTES = (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16)
# How long a thread that waits for a device sleeps between two checks, at first and at most.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.00002, 0.001
# The limit for queued kernels when the host waits for them. Kernels also have their own deadline.
_SYNCHRONIZE_SECONDS = 3600.0

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
        self._stream: torch.cuda.Stream | None = None
        _open.add(self)

    @classmethod
    def open(cls, group: _native.Group, device: torch.device | None, is_urgent: bool) -> Device | None:
        """Connects the devices; all ranks call this. None if a rank has no usable device; the log says why."""
        ordinal = _ordinal(device)
        try:
            joined = _native.DeviceGroup.open(group, ordinal, None, _cache())
        except PortError as error:
            if ordinal >= 0 and (text := str(error)) not in _logged:
                _logged.add(text)
                _log.warning(
                    "staging CUDA tensors through host memory: no collectives on the device: %s", text
                )
            return None
        return cls(joined, torch.device("cuda", joined.ordinal), group.rank, group.world, is_urgent)

    def takes(self, task: Task) -> bool:
        """Whether the device runs this task. All ranks answer alike for the same operation."""
        device = task.device
        if task.native == "barrier":
            # Otherwise the host waits, as for all barriers.
            return is_capturing()
        if device is None or device.type != "cuda" or task.is_transfer:
            return False
        if device != self._device:
            raise RuntimeError(
                f"invalid device {device} of the tensors: the communicator is on {self._device}"
            )
        return True

    def issue(self, task: Task, async_op: bool) -> TorchWork:
        """Queues a task: on the current stream, or, with ``async_op``, on a stream of our own."""
        # During a capture, another stream would have to be joined to the captured one before the capture ends.
        if not async_op or is_capturing():
            # The raw handle: a stream object costs microseconds.
            self._queue(task, torch._C._cuda_getCurrentRawStream(self._device.index))
            return TorchWork()
        stream = self._own_stream()
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._queue(task, stream.cuda_stream)
            done = stream.record_event()
        for tensor in (*task.inputs, *task.outputs):
            # The allocator must not reuse it before the stream has come to here.
            tensor.record_stream(stream)
        return DeviceWork(self._group, self._device, stream, done)

    def synchronize(self) -> None:
        """Waits for all queued kernels.

        An allocation by the host may wait for kernels, so these must not wait for what the host does next.
        """
        self._group.synchronize(_SYNCHRONIZE_SECONDS)

    def register(self, tensor: torch.Tensor) -> None:
        """Registers a tensor; see :meth:`torchcomms._engine.Engine.register_tensor`."""
        self._group.register(tensor.data_ptr(), tensor.nbytes, tensor)

    def set_timeout(self, seconds: float) -> None:
        self._group.set_timeout(seconds)

    def set_urgent(self, is_urgent: bool) -> None:
        """Sets the priority of the stream of later asynchronous operations."""
        if is_urgent != self._is_urgent:
            self._is_urgent, self._stream = is_urgent, None

    def state(self) -> tuple[BaseException | None, int | None]:
        """Why the group has failed, and how many operations are unfinished; None if that is unknown."""
        failure = _failure_of(self._group)
        return failure, None if failure is not None else self._group.unfinished()

    def close(self) -> None:
        """Waits a moment for queued kernels, and frees the device."""
        _open.discard(self)
        self._group.close()

    def _own_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            priority = -1 if self._is_urgent else 0
            self._stream = torch.cuda.Stream(self._device, priority=priority)  # type: ignore[no-untyped-call]
        return self._stream

    def _queue(self, task: Task, stream: int) -> None:
        if task.native == "all_reduce":
            source = task.inputs[0]
            self._group.all_reduce(
                source.data_ptr(),
                task.outputs[0].data_ptr(),
                source.nbytes // _BYTES[task.dtype],
                task.dtype,
                task.reduce,
                task.timeout,
                stream,
            )
            return
        inputs = task.inputs
        if task.native == "all_gather" and len(task.outputs) == 1:
            source, whole = inputs[0], task.outputs[0]
            own = whole.data_ptr() + self._rank * source.nbytes
            if source.data_ptr() != own and _overlap(source, whole):
                inputs = (source.clone(),)
        self._group.run(
            task.native,
            task.dtype,
            task.reduce,
            task.peer,
            task.counts,
            task.others,
            spans(inputs),
            spans(task.outputs),
            task.timeout,
            stream,
        )


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

    __slots__ = ("_device", "_done", "stream")

    _is_on_device = True

    def __init__(
        self,
        group: _native.DeviceGroup,
        device: torch.device,
        stream: torch.cuda.Stream,
        done: torch.cuda.Event,
    ) -> None:
        super().__init__(_PendingEvent(group, done))
        self._device = device
        self._done = done
        self.stream = stream
        """The stream that it is queued on."""

    def wait(self) -> None:
        """Orders later work of the current stream after it. Raises its error, if it is known."""
        if self._pending is not None:
            torch.cuda.current_stream(self._device).wait_event(self._done)
            self.is_completed()
        if self._pending is None:
            super().wait()
        elif self._listeners:
            self._notify("wait")

    def wait_blocking(self) -> None:
        """Waits until the result is in device memory."""
        self._settle(None)
        super().wait()


class _PendingEvent:
    """An event in a stream that the host waits for."""

    __slots__ = ("_done", "_group")

    def __init__(self, group: _native.DeviceGroup, done: torch.cuda.Event) -> None:
        self._group = group
        self._done = done

    def wait(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _PAUSE_SECONDS
        # This ends: a kernel that waits for a lost rank ends, too.
        while not self.done():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        failure = _failure_of(self._group)
        if failure is not None:
            raise failure
        return True

    def done(self) -> bool:
        return bool(self._done.query())  # type: ignore[no-untyped-call]


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
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


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
