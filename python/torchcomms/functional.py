"""Support of torch.compile: none yet. Call communicators outside of compiled functions."""

from __future__ import annotations


def is_torch_compile_supported(min_version: str = "2.12.0.dev0", _current_version: str | None = None) -> bool:
    """Whether ``torch.compile(fullgraph=True)`` traces operations of communicators: not yet."""
    return False


def is_torch_compile_supported_and_enabled(
    min_version: str = "2.12.0.dev0", _current_version: str | None = None
) -> bool:
    """Whether it does, and ``TORCHCOMMS_PATCH_FOR_COMPILE=1`` is set: not yet."""
    return False
