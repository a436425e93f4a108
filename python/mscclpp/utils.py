"""Kernels, buffers and parameters; also available from ``mscclpp``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mscclpp._gpu_buffer import RawGpuBuffer, gpu_buffer_class
from mscclpp._host_memory import HostBuffer, RawHostBuffer
from mscclpp._kernel import Kernel, KernelBuilder
from mscclpp._pack import pack

if TYPE_CHECKING:
    from mscclpp._gpu_buffer import GpuBuffer

__all__ = ["GpuBuffer", "HostBuffer", "Kernel", "KernelBuilder", "RawGpuBuffer", "RawHostBuffer", "pack"]


def __getattr__(name: str) -> type:
    # Defined on first use, because it imports cupy.
    if name == "GpuBuffer":
        return gpu_buffer_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
