"""What tests on a machine with a GPU share. Elsewhere they skip by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpu_device import Page


@pytest.fixture(scope="session")
def needs_gpu() -> None:
    """Skips where there is no device that can be used."""
    from ringfold import _native

    why_not = _native.cuda_unavailable_reason()
    if why_not is not None:
        pytest.skip(f"needs a CUDA device: {why_not}")


@pytest.fixture(scope="session")
def warm_gpu(needs_gpu: None) -> None:
    """Another process has loaded torch and used the device, so that those of the tests start quickly."""
    code = "import torch; print(torch.zeros(1, device='cuda:0').item())"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=False, capture_output=True)


@pytest.fixture
def page(needs_gpu: None) -> Iterator[Page]:
    """The page of waits that have no handle, with nothing on it; handles of a test may have it too."""
    pytest.importorskip("torch", reason="torch brings the memory of these tests")
    from gpu_device import process_page, synchronize

    page = process_page()
    page.reset()
    yield page
    synchronize()
