"""CUDA tensors staged through pinned host memory. Needs torch, so it is imported with the first communicator."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from torchcomms._task import Task, Tensors


class QueuedCall:
    """A call that a :class:`CallQueue` runs. It is a :class:`torchcomms._work.Pending`."""

    __slots__ = ("_call", "_error", "_is_done")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self._is_done = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        assert self._call is not None
        try:
            self._call()
        except BaseException as error:
            self._error = error
        self._call = None
        self._is_done.set()

    def wait(self, timeout: float | None) -> bool:
        if not self._is_done.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def join(self, timeout: float | None = None) -> bool:
        """Waits until it has ended or failed; False after the timeout."""
        return self._is_done.wait(timeout)

    def done(self) -> bool:
        return self._is_done.is_set()


class CallQueue:
    """A thread that runs calls in the order in which they were queued."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[QueuedCall | None] = queue.SimpleQueue()
        self._last: QueuedCall | None = None
        # A daemon: the process may exit while a call runs, which has its own deadline.
        threading.Thread(target=self._run, name="torchcomms-staging", daemon=True).start()

    def join(self) -> None:
        """Waits until all queued calls have ended or failed."""
        if self._last is not None:
            self._last.join()

    def put(self, call: Callable[[], None]) -> QueuedCall:
        """Queues a call."""
        queued = QueuedCall(call)
        self._last = queued
        self._calls.put(queued)
        return queued

    def close(self) -> None:
        """Ends the thread after the queued calls."""
        self._calls.put(None)

    def _run(self) -> None:
        while (queued := self._calls.get()) is not None:
            queued.run()


def staged(
    task: Task,
    is_urgent: bool,
    run: Callable[[Task], None],
    before: Callable[[], None] | None = None,
    pins: bool = True,
) -> Callable[[], None]:
    """A call that runs a task. CUDA tensors are copied to the host before and back after it.

    It starts after what is queued on the current stream now, and ends when the results are in device memory. If ``run`` fails,
    device memory does not change. ``before`` is called first if memory has to be allocated. Unless ``pins``, the copies are slower,
    but no allocation waits for kernels.
    """
    device = task.device
    if device is None:
        return lambda: run(task)
    if device.type != "cuda":
        raise RuntimeError(f"unsupported device {device}: tensors must be on the CPU or a CUDA device")
    ready = torch.cuda.current_stream(device).record_event()

    def call() -> None:
        if before is not None:
            before()
        stream = torch.cuda.Stream(device, priority=-1 if is_urgent else 0)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            inputs, outputs = task.inputs, task.outputs
            task.inputs = _host_copies(inputs, pins)
            # Outputs are copied too: an operation may leave a part of them unchanged.
            task.outputs = task.inputs if inputs is outputs else _host_copies(outputs, pins)
            stream.synchronize()
            run(task)
            for tensor, copy in zip(outputs, task.outputs):
                tensor.copy_(copy, non_blocking=True)
            stream.synchronize()

    return call


def _host_copies(tensors: Tensors, pins: bool) -> Tensors:
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pins) for tensor in tensors]
    for tensor, copy in zip(tensors, copies):
        copy.copy_(tensor, non_blocking=True)
    return copies
