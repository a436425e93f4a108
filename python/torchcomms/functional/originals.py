"""The methods of communicators and windows before they were replaced."""

from __future__ import annotations

from typing import Any

from torchcomms._comm import TorchComm
from torchcomms._window import FakeWindow, TorchCommWindow
from torchcomms._work import TorchWork

issue = TorchComm._issue
all_reduce = TorchComm.all_reduce

WINDOW_METHODS = ("_put", "_get", "_signal", "_wait_signal")
WINDOWS: tuple[type[TorchCommWindow], ...] = (FakeWindow, TorchCommWindow)

_of_windows = {kind: {name: kind.__dict__[name] for name in WINDOW_METHODS} for kind in WINDOWS}


def run_on_window(window: TorchCommWindow, name: str, *arguments: Any) -> TorchWork:
    """Runs an operation of a window."""
    kind = next(kind for kind in WINDOWS if isinstance(window, kind))
    work: TorchWork = _of_windows[kind][name](window, *arguments)
    return work
