"""Channels: what kernels use to write another rank's memory and to wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mscclpp._errors import invalid, told
from mscclpp._handle import DeviceHandle
from mscclpp._memory import RegisteredMemory
from mscclpp._semaphore import MemoryDevice2DeviceSemaphore, Semaphore
from mscclpp._spelling import also
from ringfold import _native

if TYPE_CHECKING:
    from mscclpp._proxy import ProxyService


class BasePortChannel:
    """A semaphore of a :class:`mscclpp.ProxyService`. Kernels push into the service's queue by the device handle, and name the
    memories by their ids; :class:`PortChannel` knows them itself.
    """

    def __init__(self, native: _native.PortChannel, service: ProxyService, keep: object = None) -> None:
        self._native = native
        # The memory behind the handle is the service's.
        self._service = service
        self._keep = keep

    def device_handle(self) -> DeviceHandle:
        """For kernels: a ``BasePortChannelDeviceHandle``."""
        with told():
            return DeviceHandle(self._native.handle)

    def signal(self) -> None:
        """Has the other end signalled, behind everything before."""
        with told():
            self._native.signal()

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all that was pushed is where it belongs."""
        with told():
            self._native.flush(timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for one signal of the other end."""
        with told():
            self._native.wait(timeout)

    def poll(self) -> bool:
        """Whether the other end has signalled once more; if so, that is used up."""
        with told():
            return self._native.poll()


class PortChannel(BasePortChannel):
    """From a memory of this rank to one of another rank, by a proxy thread of the host.

    Kernels use the device handle. The methods here do the same from the host, which needs no GPU: they push into the same
    queue, and the other end's host waits.
    """

    def put(self, dst_offset: int, src_offset: int, size: int) -> None:
        """Writes bytes of this rank's memory into the other's."""
        with told():
            self._native.put(dst_offset, src_offset, size)

    def put_with_signal(self, dst_offset: int, src_offset: int, size: int) -> None:
        """Writes, and then signals."""
        with told():
            self._native.put_with_signal(dst_offset, src_offset, size)

    def put_with_signal_and_flush(self, dst_offset: int, src_offset: int, size: int) -> None:
        """Writes, signals, and waits until both are where they belong."""
        with told():
            self._native.put_with_signal_and_flush(dst_offset, src_offset, size)


class MemoryChannel:
    """From a memory of this rank to one of another rank that kernels can write themselves. The packet buffer is where packets of
    the other rank come in.
    """

    @also(sema="semaphore")
    def __init__(
        self,
        semaphore: MemoryDevice2DeviceSemaphore | Semaphore,
        dst: RegisteredMemory,
        src: RegisteredMemory | int,
        packet_buffer: RegisteredMemory | int | None = None,
    ) -> None:
        if isinstance(semaphore, Semaphore):
            semaphore = MemoryDevice2DeviceSemaphore(semaphore)
        if not isinstance(semaphore, MemoryDevice2DeviceSemaphore):
            raise invalid(
                f"a memory channel needs a MemoryDevice2DeviceSemaphore, not {type(semaphore).__name__}"
            )
        RegisteredMemory.native_of(dst, "dst")
        self._semaphore = semaphore
        self._dst = dst
        self._src = src
        self._packet_buffer = packet_buffer
        self._handle: DeviceHandle | None = None

    def device_handle(self) -> DeviceHandle:
        """For kernels: a ``MemoryChannelDeviceHandle``."""
        if self._handle is None:
            src, buffer = self._src, self._packet_buffer
            with told():
                raw = _native.memory_channel_handle(
                    self._semaphore.native,
                    self._dst.native,
                    src.native if isinstance(src, RegisteredMemory) else self._dst.native,
                    buffer.native if isinstance(buffer, RegisteredMemory) else None,
                )
            # Once they were plain addresses. They are the last two words.
            if isinstance(src, int):
                raw = raw[:-16] + src.to_bytes(8, "little") + raw[-8:]
            if isinstance(buffer, int):
                raw = raw[:-8] + buffer.to_bytes(8, "little")
            self._handle = DeviceHandle(raw)
        return self._handle


SmChannel = MemoryChannel
ProxyChannel = PortChannel
