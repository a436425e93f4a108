"""Operations in flight, as torch.distributed knows them. Imports torch: only :mod:`torchcomms._backend_wrapper` imports this."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from torchcomms._work import TorchWork

# How long the thread that completes futures stays for the next one..
LINGER_SECONDS = 0.05

# The kind of operation that torch gives works which it knows nothing about.
_UNKNOWN_OP = 100

Finish = Callable[[], None]


class C10dWork(Work):
    """One operation, or several that end together.

    ``results`` are the tensors that hold the outcome, and the value of its future. ``finish`` is called once when all
    has ended well, by whichever thread sees that first.
    """

    def __init__(
        self,
        works: list[TorchWork],
        results: list[torch.Tensor],
        futures: Futures,
        finish: Finish | None = None,
        source: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._works = works
        self._results = results
        self._futures = futures
        self._finish = finish
        self._source = source
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self._gate: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end, and raises what went wrong. With a timeout, raises if it has not ended by then; it
        goes on all the same, and may be waited for again."""
        limit = timeout.total_seconds() if timeout else 0.0
        if limit > 0.0 and not self._wait_for(limit):
            raise RuntimeError(f"the operation has not ended within {limit:g} s; it goes on")
        for work in self._works:
            work.wait()
        self._end()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not. Does not wait."""
        if not all(work.is_completed() for work in self._works):
            return False
        if self._error() is None:
            self._end()
        return True

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._error() is None

    def exception(self) -> BaseException | None:
        """What went wrong, if it has ended and something did."""
        return self._error() if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the outcome, once it has ended."""
        if not self.is_completed():
            raise RuntimeError("the operation has not ended; wait() for it before its result")
        self.wait()
        return self._results

    def synchronize(self) -> None:
        """The same as :meth:`wait`: what is in memory needs nothing more."""
        self.wait()

    def source_rank(self) -> int:
        """Who sent what was received from anyone."""
        return -1 if self._source is None else self._source()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors that hold the outcome. It is completed without the help of the thread that
        began the operation."""
        if getattr(_asked, "is_asking", False):
            _asked.work = self
            return _asked.answer  # type: ignore[no-any-return]
        with self._lock:
            if self._future is not None:
                return self._future
            devices: list[int | str | torch.device] = sorted(
                {t.device for t in self._results if t.device.type != "cpu"}, key=str
            )
            self._gate = torch.futures.Future(devices=devices)
            # What a callback raises is an error to callers in C++ as well; set_exception() would be a value there.
            future = self._future = self._gate.then(self._outcome)
        if self.is_completed():
            self._open()
        else:
            self._futures.complete(self)
        return future

    def get_future_result(self) -> torch.futures.Future[Any]:
        """A future that says how it ended."""
        return self.get_future()

    def _outcome(self, _gate: object) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def _open(self) -> None:
        """Waits for the end, and completes the future."""
        self._wait_for(None)
        gate = self._gate
        assert gate is not None
        gate.set_result(self._results if self._error() is None else [])

    def _wait_for(self, seconds: float | None) -> bool:
        until = None if seconds is None else time.monotonic() + seconds
        for work in self._works:
            left = None if until is None else max(until - time.monotonic(), 0.0)
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


class Futures:
    """Completes the futures of one communicator's works.

    Collectives end in the order in which they were begun, so one thread is enough for them. Transfers do not, and have a
    thread each.
    """

    def __init__(self) -> None:
        self._works: deque[C10dWork] = deque()
        self._news = threading.Condition()
        self._server: threading.Thread | None = None

    def complete(self, work: C10dWork) -> None:
        """Has a work's future completed when it has ended."""
        if self._server is threading.current_thread():
            # A callback of a future has begun an operation, and may wait for that one's future.
            complete_apart(work)
            return
        with self._news:
            self._works.append(work)
            if self._server is not None:
                self._news.notify()
                return
            server = self._server = threading.Thread(target=self._serve, name="ringfold-futures", daemon=True)
        server.start()

    def _serve(self) -> None:
        while True:
            with self._news:
                if not self._news.wait_for(lambda: self._works, LINGER_SECONDS):
                    self._server = None
                    return
                work = self._works.popleft()
            work._open()
            del work


class Apart(Futures):
    """The same for works that end in any order: each has a thread."""

    def complete(self, work: C10dWork) -> None:
        complete_apart(work)


def complete_apart(work: C10dWork) -> None:
    """Has a thread of its own complete a work's future."""
    # Nobody is kept from ending by a message that never comes.
    threading.Thread(target=work._open, name="ringfold-future", daemon=True).start()


_asked = threading.local()


def _behind(held: Work) -> C10dWork | None:
    """The work of ours that torch holds under one of its own, if it does."""
    if type(held) is not Work or held._get_op_type() != _UNKNOWN_OP:  # type: ignore[attr-defined]
        return None
    _asked.is_asking, _asked.work, _asked.answer = True, None, torch.futures.Future()
    try:
        held.get_future()
    except Exception:
        return None
    finally:
        _asked.is_asking = False
    work: C10dWork | None = _asked.work
    _asked.work = None
    return work


def teach_held_works() -> None:
    """Torch wraps works of Python backends in one of its own that passes on ``wait`` and ``get_future`` alone: it would
    never say that it is completed. This has it pass on the rest, for our works and no others."""
    if getattr(Work, "_ringfold_is_taught", False):
        return
    for name in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank"):
        setattr(Work, name, _passed_on(name, getattr(Work, name)))
    Work._ringfold_is_taught = True  # type: ignore[attr-defined]


def _passed_on(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Work, *arguments: Any) -> Any:
        ours = _behind(self)
        return original(self, *arguments) if ours is None else getattr(ours, name)(*arguments)

    method.__name__ = name
    method.__doc__ = original.__doc__
    return method
