"""Tests of torchcomms on a machine with a GPU. Elsewhere they skip by name."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def needs_gpu() -> None:
    """Skips where there is no device that can be used."""
    pytest.importorskip("torch", reason="torch is not installed")
    from ringfold import _native

    why_not = _native.cuda_unavailable_reason()
    if why_not is not None:
        pytest.skip(f"needs a CUDA device: {why_not}")
