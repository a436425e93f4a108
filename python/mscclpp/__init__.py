"""Channels between GPUs and hosts: kernels write memory of other ranks, signal, and wait.

    import mscclpp

    group = mscclpp.CommGroup(MPI.COMM_WORLD)
    others = [rank for rank in range(group.nranks) if rank != group.my_rank]
    connections = group.make_connection(others, mscclpp.Transport.CudaIpc)
    memory = mscclpp.GpuBuffer(1024, dtype=cupy.int32)
    service = mscclpp.ProxyService()
    channels = group.make_port_channels(service, memory, connections)
    service.start_proxy()

The import needs no GPU, cupy, torch, numpy or MPI. Names of early 2025 (``ProxyChannel``, ``SmChannel``, ``mscclpp.comm``,
``mscclpp.utils``) still work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mscclpp import comm, npkit, utils
from mscclpp._bootstrap import Bootstrap, TcpBootstrap, UniqueId
from mscclpp._channel import BasePortChannel, MemoryChannel, PortChannel, ProxyChannel, SmChannel
from mscclpp._communicator import Communicator
from mscclpp._connection import Connection
from mscclpp._device import Device, DeviceType, EndpointConfig
from mscclpp._env import Env, env
from mscclpp._errors import BaseError, CudaError, CuError, Error, ErrorCode, IbError, SysError
from mscclpp._executor import ExecutionPlan, Executor
from mscclpp._fifo import Fifo, ProxyTrigger
from mscclpp._future import Future
from mscclpp._gpu_buffer import RawGpuBuffer, gpu_buffer_class
from mscclpp._handle import DeviceHandle
from mscclpp._headers import include_path
from mscclpp._host_memory import HostBuffer, RawHostBuffer
from mscclpp._kernel import Kernel, KernelBuilder
from mscclpp._memory import RegisteredMemory
from mscclpp._pack import pack
from mscclpp._proxy import ProxyService
from mscclpp._semaphore import (
    Host2DeviceSemaphore,
    Host2HostSemaphore,
    MemoryDevice2DeviceSemaphore,
    Semaphore,
    SmDevice2DeviceSemaphore,
)
from mscclpp._transport import Transport, TransportFlags
from mscclpp._types import DataType, PacketType, ReduceOp
from mscclpp.comm import CommGroup
from ringfold._native import __version__, start_log

if TYPE_CHECKING:
    from mscclpp._collectives import Collectives
    from mscclpp._gpu_buffer import GpuBuffer

__all__ = ["__version__", "BaseError", "BasePortChannel", "Bootstrap", "Collectives", "CommGroup"]
__all__ += ["Communicator", "Connection", "CuError", "CudaError", "DataType", "Device", "DeviceHandle"]
__all__ += ["DeviceType", "EndpointConfig", "Env", "Error", "ErrorCode", "ExecutionPlan", "Executor"]
__all__ += ["Fifo", "Future", "GpuBuffer", "Host2DeviceSemaphore", "Host2HostSemaphore", "HostBuffer"]
__all__ += ["IbError", "Kernel", "KernelBuilder", "MemoryChannel", "MemoryDevice2DeviceSemaphore"]
__all__ += ["PacketType", "PortChannel", "ProxyChannel", "ProxyService", "ProxyTrigger", "RawGpuBuffer"]
__all__ += ["RawHostBuffer", "ReduceOp", "RegisteredMemory", "Semaphore", "SmChannel"]
__all__ += ["SmDevice2DeviceSemaphore", "SysError", "TcpBootstrap", "Transport", "TransportFlags"]
__all__ += ["UniqueId", "comm", "env", "include_path", "is_nvls_supported", "npkit", "pack", "utils"]

start_log()
del start_log


def is_nvls_supported() -> bool:
    """Whether NVLS channels are supported: not yet, so always False."""
    return False


def __getattr__(name: str) -> type:
    # Defined on first use, because they need more than mscclpp itself.
    if name == "GpuBuffer":
        return gpu_buffer_class()
    if name == "Collectives":
        from mscclpp._collectives import Collectives

        return Collectives
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
