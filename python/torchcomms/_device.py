"""Collectives by kernels on CUDA devices, on torch's streams. Needs torch and the native module, so it is imported with the first
communicator.

All-reduces and all-gathers of CUDA tensors are queued on the current stream and never wait on the host; they can be captured in CUDA
graphs. Everything else, and everything where a rank has no device, no compiler or another host, takes the road through the
host's memory (:mod:`torchcomms._staging`).
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

from torchcomms._task import Task, Tensors
from torchcomms._work import TorchWork

_log = logging.getLogger("torchcomms")

# The sizes of the engine's element types, by their numbers.
_BYTES = (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16)
# How long a thread that waits for a device sleeps between two looks, at first and at most.
_NAP_SECONDS, _NAP_SECONDS_MAX = 0.00002, 0.001
# How long what was queued may take before something else is done by the host. Kernels have a deadline of their own.
_SETTLE_SECONDS = 3600.0

_told: set[str] = set()


class Device:
    """This rank's device, joined with those of all other ranks of a group."""

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
        """All ranks of the group call this together. None if a rank has no device, or can't use it; the log says why."""
        ordinal = _ordinal(device)
        try:
            joined = _native.DeviceGroup.open(group, ordinal, None, _cache())
        except PortError as error:
            if ordinal >= 0 and (text := str(error)) not in _told:
                _told.add(text)
                _log.warning(
                    "CUDA tensors go through the host's memory, because collectives can't run on the device: %s",
                    text,
                )
            return None
        return cls(joined, torch.device("cuda", joined.ordinal), group.rank, group.world, is_urgent)

    def takes(self, task: Task) -> bool:
        """Whether this is for the device. All ranks answer alike, if they ask for the same."""
        if (
            task.device is None
            or task.device.type != "cuda"
            or task.native not in ("all_reduce", "all_gather")
        ):
            return False
        if task.device != self._device:
            raise RuntimeError(f"the tensors are on {task.device}, but the communicator is on {self._device}")
        return True

    def issue(self, task: Task, async_op: bool) -> TorchWork:
        """Queues a task. Where it is waited for, that is the current stream's business; else a stream of ours does it."""
        if not task.outputs[0].numel():
            return TorchWork()
        # A stream of ours would have to come back to the one that is captured before the capture ends.
        if not async_op or torch.cuda.is_current_stream_capturing():
            # The number alone: making an object of it costs microseconds.
            self._queue(task, torch._C._cuda_getCurrentRawStream(self._device.index))
            return TorchWork()
        stream = self._own_stream()
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._queue(task, stream.cuda_stream)
            done = stream.record_event()
        for tensor in (*task.inputs, *task.outputs):
            # The allocator does not give it to anybody else before the stream has come to here.
            tensor.record_stream(stream)
        return DeviceWork(self._group, self._device, done)

    def settle(self) -> None:
        """Waits until all that was queued is done. What the host allocates may have to wait for kernels; so these must not
        wait for what the host does next."""
        self._group.settle(_SETTLE_SECONDS)

    def register(self, tensor: torch.Tensor) -> None:
        """Has large operations on this tensor, or on parts of it, read and write it in place. All ranks call it together, each
        with a tensor of its own, which is kept until the communicator is finalized."""
        self._group.register(tensor.data_ptr(), tensor.nbytes, tensor)

    def set_timeout(self, seconds: float) -> None:
        self._group.set_timeout(seconds)

    def close(self) -> None:
        """Waits a moment for what was queued, and lets go of the device."""
        _open.discard(self)
        self._group.close()

    def _own_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            priority = -1 if self._is_urgent else 0
            self._stream = torch.cuda.Stream(self._device, priority=priority)  # type: ignore[no-untyped-call]
        return self._stream

    def _queue(self, task: Task, stream: int) -> None:
        source = task.inputs[0]
        item = _BYTES[task.dtype]
        count = source.nbytes // item
        if task.native == "all_reduce":
            target = task.outputs[0]
            self._group.all_reduce(
                source.data_ptr(), target.data_ptr(), count, task.dtype, task.reduce, stream
            )
            return
        if len(task.outputs) > 1:
            self._gather_apart(task, source, task.outputs, count, stream)
            return
        whole = task.outputs[0]
        if _overlap(source, whole) and source.data_ptr() != whole.data_ptr() + self._rank * source.nbytes:
            source = source.clone()
        self._group.all_gather(source.data_ptr(), whole.data_ptr(), count, task.dtype, stream)

    def _gather_apart(
        self, task: Task, source: torch.Tensor, parts: Tensors, count: int, stream: int
    ) -> None:
        """Into a tensor for each rank, by way of one that holds all of them."""
        whole = torch.empty(source.nbytes * self._size, dtype=torch.uint8, device=self._device)
        self._group.all_gather(source.data_ptr(), whole.data_ptr(), count, task.dtype, stream)
        with torch.no_grad():
            for part, piece in zip(parts, whole.view(self._size, -1)):
                part.detach().view(-1).view(torch.uint8).copy_(piece)


# Those that are not closed.
_open: weakref.WeakSet[Device] = weakref.WeakSet()


def settle_devices(seconds: float) -> None:
    """Waits so long for all that was queued on devices of ranks that are not closed, by graphs, too. A process that ends takes its
    kernels with it, and those of others would wait for them in vain."""
    devices = {device._device for device in _open}
    if not devices:
        return

    def wait() -> None:
        for device in devices:
            # A device that has failed has nothing under way.
            with contextlib.suppress(Exception):
                torch.cuda.synchronize(device)

    thread = threading.Thread(target=wait, name="torchcomms-end", daemon=True)
    thread.start()
    thread.join(seconds)


class DeviceWork(TorchWork):
    """Something that a stream of ours does. ``wait()`` has the current stream wait for it, not the host."""

    __slots__ = ("_device", "_done")

    def __init__(self, group: _native.DeviceGroup, device: torch.device, done: torch.cuda.Event) -> None:
        super().__init__(_Queued(group, done))
        self._device = device
        self._done = done

    def wait(self) -> None:
        """Has what is queued on the current stream from now on begin after it. Raises what went wrong, if that is known."""
        if self._pending is not None:
            torch.cuda.current_stream(self._device).wait_event(self._done)
            self.is_completed()
        if self._pending is None:
            super().wait()
        elif self._listeners:
            self._tell("wait")

    def wait_blocking(self) -> None:
        """Waits until the result is in the device's memory."""
        self._settle(None)
        super().wait()


class _Queued:
    """A place in a stream, waited for by the host."""

    __slots__ = ("_done", "_group")

    def __init__(self, group: _native.DeviceGroup, done: torch.cuda.Event) -> None:
        self._group = group
        self._done = done

    def wait(self, timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        nap = _NAP_SECONDS
        # A kernel that waits for a rank which is gone ends, so this does.
        while not self.done():
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(nap)
            nap = min(nap * 2, _NAP_SECONDS_MAX)
        failure = self._failure()
        if failure is not None:
            raise failure
        return True

    def done(self) -> bool:
        return bool(self._done.query())  # type: ignore[no-untyped-call]

    def _failure(self) -> BaseException | None:
        try:
            failure = self._group.failure()
        except GroupError:
            # Closed in good order.
            return None
        return None if failure is None or failure.kind == "left" else failure


def _ordinal(device: torch.device | None) -> int:
    if device is None or device.type != "cuda" or not torch.cuda.is_available():
        return -1
    return torch.cuda.current_device() if device.index is None else device.index


def _cache() -> str | None:
    """Where compiled kernels are kept."""
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
