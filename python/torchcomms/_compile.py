"""The switch of :mod:`torchcomms.functional`, which is loaded with the first communicator if it is on.

Imports nothing: torch imports this package during its own import.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm
    from torchcomms._window import TorchCommWindow

PATCH = "TORCHCOMMS_PATCH_FOR_COMPILE"

is_enabled = os.environ.get(PATCH) == "1"
"""Whether the variable was set when this package was imported."""


def enroll_comm(comm: TorchComm) -> None:
    """Lets compiled functions call the methods of a communicator, if the switch is on."""
    if is_enabled:
        from torchcomms import functional

        if functional.install():
            from torchcomms.functional.handles import name_comm

            name_comm(comm)


def enroll_window(window: TorchCommWindow) -> None:
    """The same for a window."""
    if is_enabled:
        from torchcomms import functional

        if functional.install():
            from torchcomms.functional.handles import name_window

            name_window(window)


def plain(comm: TorchComm) -> TorchComm:
    """The communicator for callers that need plain works, and no gradients."""
    if not (is_enabled and hasattr(comm, "_graph_handle")):
        return comm
    from torchcomms.functional.plain import PlainOperations

    return PlainOperations(comm)  # type: ignore[return-value]
