"""Which versions of torch are supported."""

from __future__ import annotations

import os

from torchcomms import _compile

IGNORE_VERSION = "TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT"

MIN_PYTORCH_VERSION_FOR_COMPILE = "2.12.0.dev0"


def is_torch_compile_supported(
    min_version: str = MIN_PYTORCH_VERSION_FOR_COMPILE, _current_version: str | None = None
) -> bool:
    """Whether torch is new enough to compile functions that call communicators."""
    if os.environ.get(IGNORE_VERSION) == "1":
        return True
    from torch.torch_version import TorchVersion, __version__

    current = __version__ if _current_version is None else _current_version
    return bool(TorchVersion(current) >= TorchVersion(min_version))


def is_torch_compile_supported_and_enabled(
    min_version: str = MIN_PYTORCH_VERSION_FOR_COMPILE, _current_version: str | None = None
) -> bool:
    """The same, and ``TORCHCOMMS_PATCH_FOR_COMPILE=1`` was set when torchcomms was imported."""
    return _compile.is_enabled and is_torch_compile_supported(min_version, _current_version)
