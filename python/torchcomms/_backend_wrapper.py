"""A communicator as a backend of torch.distributed.

``_BackendWrapper`` is defined on first use: torch imports this module during its own import, before its base class exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcomms._c10d_backend import BackendWrapper as _BackendWrapper

__all__ = ["_BackendWrapper"]


def __getattr__(name: str) -> Any:
    if name != "_BackendWrapper":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # First, because torch's import itself calls this function.
    import torch  # noqa: F401

    from torchcomms._c10d_backend import BackendWrapper

    return BackendWrapper
