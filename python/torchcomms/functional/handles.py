"""Names of communicators and windows in graphs. A graph does not keep them alive."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm
    from torchcomms._window import TorchCommWindow

_numbers = itertools.count()
_named: WeakValueDictionary[str, TorchComm | TorchCommWindow] = WeakValueDictionary()


def assign_handle(one: TorchComm | TorchCommWindow) -> None:
    """Names a communicator or window. Compiled code is specialised on the name, and is compiled again for another one."""
    # A text and not a number, which would become a dynamic one.
    handle = f"{type(one).__name__}_{next(_numbers)}"
    one._graph_handle = handle
    _named[handle] = one


def find(handle: str) -> TorchComm | TorchCommWindow:
    """The communicator or window with this name."""
    one = _named.get(handle)
    if one is None:
        raise RuntimeError(f"unknown communicator or window {handle!r}: it was dropped")
    return one
