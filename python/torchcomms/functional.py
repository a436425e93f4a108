"""What torch.compile can trace. As yet communicators are called outside of what it compiles, so the answers are no."""

from __future__ import annotations


def is_torch_compile_supported(min_version: str = "2.12.0.dev0", _current_version: str | None = None) -> bool:
    """Whether ``torch.compile(fullgraph=True)`` traces operations of communicators, with this version of torch. Not yet."""
    return False


def is_torch_compile_supported_and_enabled(
    min_version: str = "2.12.0.dev0", _current_version: str | None = None
) -> bool:
    """Whether it does, and ``TORCHCOMMS_PATCH_FOR_COMPILE=1`` asks for it. Not yet."""
    return False
