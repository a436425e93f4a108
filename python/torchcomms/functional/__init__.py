"""Communicators in compiled functions, and gradients of their operations.

With ``TORCHCOMMS_PATCH_FOR_COMPILE=1`` in the environment when torchcomms is imported:

- ``torch.compile(function, fullgraph=True)`` accepts functions that call methods of communicators and windows. Each becomes an
  operator ``torch.ops.torchcomms.torchcomm_…``.
- An operation with ``async_op=True`` returns its result, a tensor or a list that waits on its first use, which is a work too.
- all_reduce, all_gather, reduce_scatter and all_to_all have gradients.

Modules: ``operators`` (what graphs contain), ``methods`` (what communicators call instead), ``traced`` (calls in compiled functions),
``gradients``, ``async_tensor``.
"""

from __future__ import annotations

from torchcomms import _compile
from torchcomms.functional.support import (
    MIN_PYTORCH_VERSION_FOR_COMPILE,
    is_torch_compile_supported,
    is_torch_compile_supported_and_enabled,
)

__all__ = ["MIN_PYTORCH_VERSION_FOR_COMPILE", "is_torch_compile_supported"]
__all__ += ["is_torch_compile_supported_and_enabled"]

_is_installed: bool | None = None


def install() -> bool:
    """Replaces the methods of communicators and windows, once; whether this version of torch is supported."""
    global _is_installed  # noqa: PLW0603
    if _is_installed is None:
        _is_installed = is_torch_compile_supported()
        if _is_installed:
            from torchcomms.functional import methods

            methods.replace_methods()
        else:
            import warnings

            import torch

            text = f"{_compile.PATCH} has no effect: torch {torch.__version__} is too old"
            warnings.warn(text, stacklevel=2)
    return _is_installed


if _compile.is_enabled:
    install()
