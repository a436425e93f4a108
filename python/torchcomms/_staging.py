"""Tensors of CUDA devices, taken through the host's memory. Needs torch, so it is imported with the first communicator."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch

from torchcomms._task import Task, Tensors


class Staged:
    """Something that the thread of a :class:`Staging` does; waited for as any operation."""

    __slots__ = ("_error", "_is_done", "_job")

    def __init__(self, job: Callable[[], None]) -> None:
        self._job: Callable[[], None] | None = job
        self._is_done = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        assert self._job is not None
        try:
            self._job()
        except BaseException as error:
            self._error = error
        self._job = None
        self._is_done.set()

    def wait(self, timeout: float | None) -> bool:
        if not self._is_done.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def settle(self) -> None:
        """Waits for the end, however that is."""
        self._is_done.wait()

    def ends_within(self, seconds: float) -> bool:
        """Waits so long for the end, however that is."""
        return self._is_done.wait(seconds)

    def done(self) -> bool:
        return self._is_done.is_set()


class Staging:
    """A thread that does one thing after the other, in the order in which they were issued."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Staged | None] = queue.SimpleQueue()
        self._last: Staged | None = None
        # The process may end while something is under way; that has a deadline of its own.
        threading.Thread(target=self._work, name="torchcomms-staging", daemon=True).start()

    def settle(self) -> None:
        """Waits until all that was begun is done, well or not."""
        if self._last is not None:
            self._last.settle()

    def begin(self, job: Callable[[], None]) -> Staged:
        """Has something done after all that was begun before."""
        staged = Staged(job)
        self._last = staged
        self._jobs.put(staged)
        return staged

    def end(self) -> None:
        """The thread ends when all is done."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (staged := self._jobs.get()) is not None:
            staged.run()


def staged(
    task: Task, is_urgent: bool, run: Callable[[Task], None], before: Callable[[], None] | None = None
) -> Callable[[], None]:
    """What has to be done for a task: with tensors of a device it begins with what the current stream has done by now, and
    ends when the results are in the device's memory. If ``run`` fails, that memory stays as it is. ``before`` is done first,
    if there is memory to be allocated.
    """
    device = task.device
    if device is None:
        return lambda: run(task)
    if device.type != "cuda":
        raise RuntimeError(f"tensors on {device} are not supported")
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "this operation can't be captured in a CUDA graph: its tensors go through the host's memory"
        )
    ready = torch.cuda.current_stream(device).record_event()

    def job() -> None:
        if before is not None:
            before()
        stream = torch.cuda.Stream(device, priority=-1 if is_urgent else 0)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            inputs, outputs = task.inputs, task.outputs
            task.inputs = _host_copies(inputs)
            # What an operation leaves as it is comes back as it was.
            task.outputs = task.inputs if inputs is outputs else _host_copies(outputs)
            stream.synchronize()
            run(task)
            for tensor, copy in zip(outputs, task.outputs):
                tensor.copy_(copy, non_blocking=True)
            stream.synchronize()

    return job


def _host_copies(tensors: Tensors) -> Tensors:
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for tensor, copy in zip(tensors, copies):
        copy.copy_(tensor, non_blocking=True)
    return copies
