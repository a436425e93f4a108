"""Devices and endpoint configurations."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from mscclpp._transport import Transport


class DeviceType(Enum):
    """The kind of a device."""

    Unknown = 0
    CPU = 1
    GPU = 2


@dataclass(frozen=True)
class Device:
    """A device. ``id`` -1 is the current one.

    >>> str(Device(DeviceType.GPU, 1))
    'GPU:1'
    """

    type: DeviceType = DeviceType.Unknown
    id: int = -1

    def __str__(self) -> str:
        return self.type.name if self.id < 0 else f"{self.type.name}:{self.id}"


@dataclass
class EndpointConfig:
    """One end of a connection: the transport, and the device of its memory (by default the current GPU, if there is one).

    ``through_host``: puts of this rank over :attr:`Transport.CudaIpc` go through host memory. They are slower, but need no
    multiprocessor, so they arrive while kernels occupy the whole GPU. None: as ``MSCCLPP_CUDA_IPC_THROUGH_HOST`` says.

    ``max_write_queue_size`` and ``ib`` are ignored.
    """

    transport: Transport = Transport.Unknown
    device: Device = field(default_factory=Device)
    max_write_queue_size: int = -1
    ib: object = None
    through_host: bool | None = None
