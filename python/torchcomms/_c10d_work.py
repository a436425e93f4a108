"""Works of torch.distributed. Imports torch: only :mod:`torchcomms._backend_wrapper` imports this."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._C._distributed_c10d import Work

from torchcomms._dynamo import outside_of_dynamo
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    # Needs the native module, which is loaded with the first communicator.
    from torchcomms._device import DeviceWork

# How long the thread that completes futures waits for the next one.
LINGER_SECONDS = 0.05

# Torch's operation type of works that it does not know.
_UNKNOWN_OP = 100

Finish = Callable[[], None]


@outside_of_dynamo
class C10dWork(Work):
    """One operation, or several that end together.

    ``results`` are the result tensors, and the value of its future. ``finish`` is called once after success, by the first thread
    that sees it.
    """

    def __init__(
        self,
        works: list[TorchWork],
        results: list[torch.Tensor],
        completer: FutureCompleter,
        finish: Finish | None = None,
        source: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._works = works
        self._results = results
        self._completer = completer
        self._finish = finish
        self._source = source
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self._gate: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end, and raises its error.

        Raises after the timeout; the operation goes on, and may be waited for again.
        """
        limit = timeout.total_seconds() if timeout else 0.0
        if limit > 0.0 and not self._wait_for(limit):
            raise RuntimeError(f"timed out after {limit:g} s: the operation has not ended and goes on")
        for work in self._works:
            work.wait()
        self._end()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended or failed. Does not wait."""
        if not all(work.is_completed() for work in self._works):
            return False
        if self._error() is None:
            self._end()
        return True

    def is_success(self) -> bool:
        """Whether it has succeeded."""
        return self.is_completed() and self._error() is None

    def exception(self) -> BaseException | None:
        """Its error; None before the end and after success."""
        return self._error() if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The result tensors, once it has ended."""
        if not self.is_completed():
            raise RuntimeError("no result yet: the operation has not ended; call wait() first")
        self.wait()
        return self._results

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def source_rank(self) -> int:
        """The sender of a receive from any rank."""
        return -1 if self._source is None else self._source()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result tensors. Another thread completes it."""
        if getattr(_lookup, "is_active", False):
            _lookup.work = self
            return _lookup.future  # type: ignore[no-any-return]
        with self._lock:
            if self._future is not None:
                return self._future
            devices: list[int | str | torch.device] = sorted(
                {t.device for t in self._results if t.device.type != "cpu"}, key=str
            )
            self._gate = torch.futures.Future(devices=devices)
            # C++ callers see the exception of a callback as an error, but that of set_exception() as a value.
            future = self._future = self._gate.then(self._result_of)
        if self.is_completed():
            self._complete_future()
        elif not self._complete_on_stream():
            self._completer.complete(self)
        return future

    def get_future_result(self) -> torch.futures.Future[Any]:
        """The same as :meth:`get_future`."""
        return self.get_future()

    def _result_of(self, _gate: object) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def _complete_on_stream(self) -> bool:
        """Completes the future of works on a stream at once: what waits for it is ordered after that stream."""
        if not self._works or not all(work._is_on_device for work in self._works):
            return False
        assert self._gate is not None
        if torch.cuda.is_current_stream_capturing():
            self.wait()
        with torch.cuda.stream(cast("DeviceWork", self._works[-1]).stream):
            self._gate.set_result(self._results)
        return True

    def _complete_future(self) -> None:
        """Waits for the end, and completes the future."""
        self._wait_for(None)
        gate = self._gate
        assert gate is not None
        gate.set_result(self._results if self._error() is None else [])

    def _wait_for(self, seconds: float | None) -> bool:
        deadline = None if seconds is None else time.monotonic() + seconds
        for work in self._works:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not work._wait_for(left):
                return False
        return True

    def _error(self) -> BaseException | None:
        return next((work._error for work in self._works if work._error is not None), None)

    def _end(self) -> None:
        if self._finish is None:
            return
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()


class FutureCompleter:
    """Completes the futures of one communicator's collectives, which end in order, in one thread."""

    def __init__(self) -> None:
        self._works: deque[C10dWork] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def complete(self, work: C10dWork) -> None:
        """Completes a work's future when it has ended."""
        if self._thread is threading.current_thread():
            # A callback of a future has started an operation, and may wait for its future.
            _complete_in_thread(work)
            return
        with self._changed:
            self._works.append(work)
            if self._thread is not None:
                self._changed.notify()
                return
            thread = self._thread = threading.Thread(target=self._serve, name="ringfold-futures", daemon=True)
        thread.start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._works, LINGER_SECONDS):
                    self._thread = None
                    return
                work = self._works.popleft()
            work._complete_future()
            del work


class ThreadedCompleter(FutureCompleter):
    """Completes the futures of transfers, which end in any order, in a thread each."""

    def complete(self, work: C10dWork) -> None:
        _complete_in_thread(work)


def _complete_in_thread(work: C10dWork) -> None:
    # A daemon: the process may exit while it waits for a message.
    threading.Thread(target=work._complete_future, name="ringfold-future", daemon=True).start()


# While torch is asked for the future of a work, `C10dWork.get_future` notes here which work it was.
_lookup = threading.local()


def _wrapped_work(outer: Work) -> C10dWork | None:
    """Our work inside one of torch's, if it is one."""
    if type(outer) is not Work or outer._get_op_type() != _UNKNOWN_OP:  # type: ignore[attr-defined]
        return None
    _lookup.is_active, _lookup.work, _lookup.future = True, None, torch.futures.Future()
    try:
        outer.get_future()
    except Exception:
        return None
    finally:
        _lookup.is_active = False
    work: C10dWork | None = _lookup.work
    _lookup.work = None
    return work


def patch_torch_work() -> None:
    """Makes torch's wrapper of works forward all calls to ours.

    Torch wraps works of Python backends, and forwards only ``wait`` and ``get_future``: the wrapper would never be completed.
    Works of other backends are not changed.
    """
    if getattr(Work, "_ringfold_is_patched", False):
        return
    for name in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank"):
        setattr(Work, name, _forwarded(name, getattr(Work, name)))
    Work._ringfold_is_patched = True  # type: ignore[attr-defined]


def _forwarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Work, *arguments: Any) -> Any:
        ours = _wrapped_work(self)
        return original(self, *arguments) if ours is None else getattr(ours, name)(*arguments)

    method.__name__ = name
    method.__doc__ = original.__doc__
    return method
