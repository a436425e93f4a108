"""A communicator as torch.distributed's backend.

``_BackendWrapper`` is made when it is asked for first: torch asks while it is being imported itself, and by then has the
classes that it derives from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcomms._c10d_backend import BackendWrapper as _BackendWrapper

__all__ = ["_BackendWrapper"]


def __getattr__(name: str) -> Any:
    if name != "_BackendWrapper":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # First: if torch is not imported yet, its import comes through here itself.
    import torch  # noqa: F401

    from torchcomms._c10d_backend import BackendWrapper

    return BackendWrapper
