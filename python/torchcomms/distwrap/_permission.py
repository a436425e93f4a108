"""Who may call a group of torchcomms: functions of this package may, those of torch.distributed may not."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Thread(threading.local):
    """The permitted calls of the current thread that have not returned."""

    depth = 0


_thread = _Thread()


class Permission:
    """Permits calls of this thread while it is entered. It may be entered again within."""

    def __enter__(self) -> None:
        _thread.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _thread.depth -= 1


def permitted(function: Callable[P, T]) -> Callable[P, T]:
    """A function of torch.distributed that may use groups of torchcomms."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        with Permission():
            return function(*arguments, **named)

    return call


def require_permission(operation: str) -> None:
    """Refuses a call that does not come from this package."""
    if not _thread.depth:
        raise RuntimeError(
            f"refused: {operation} of torch.distributed on a group that uses torchcomms; call the function of "
            "torchcomms.distwrap instead (from torchcomms import distwrap as dist)"
        )
