"""Names of communicators and windows in graphs. A graph does not keep them alive."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm
    from torchcomms._window import TorchCommWindow

_numbers = itertools.count()
_comms: WeakValueDictionary[str, TorchComm] = WeakValueDictionary()
_windows: WeakValueDictionary[str, TorchCommWindow] = WeakValueDictionary()


def name_comm(comm: TorchComm) -> None:
    """Names a communicator. Compiled code is specialised on the name, and is compiled again for another one."""
    # A text and not a number, which would become a dynamic one.
    comm._graph_handle = f"comm_{next(_numbers)}"
    _comms[comm._graph_handle] = comm


def name_window(window: TorchCommWindow) -> None:
    """Names a window."""
    window._graph_handle = f"window_{next(_numbers)}"
    _windows[window._graph_handle] = window


def find_comm(handle: str) -> TorchComm:
    """The communicator with this name."""
    comm = _comms.get(handle)
    if comm is None:
        raise RuntimeError(f"unknown communicator {handle!r} in a compiled function: it was dropped")
    return comm


def find_window(handle: str) -> TorchCommWindow:
    """The window with this name."""
    window = _windows.get(handle)
    if window is None:
        raise RuntimeError(f"unknown window {handle!r} in a compiled function: it was dropped")
    return window
