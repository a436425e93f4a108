"""Channels: kernels write another rank's memory and wait for signals by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mscclpp._aliases import accept_aliases
from mscclpp._errors import engine_errors, invalid
from mscclpp._handle import DeviceHandle
from mscclpp._memory import RegisteredMemory
from mscclpp._semaphore import MemoryDevice2DeviceSemaphore, Semaphore
from ringfold import _native

if TYPE_CHECKING:
    from mscclpp._proxy import ProxyService


class BasePortChannel:
    """A channel through a :class:`mscclpp.ProxyService`. Kernels push by the device handle, with the ids of the memories.

    A :class:`PortChannel` knows its memories.
    """

    def __init__(self, native: _native.PortChannel, service: ProxyService, keep: object = None) -> None:
        self._native = native
        # It owns the memory behind the handle.
        self._service = service
        self._keep = keep

    def device_handle(self) -> DeviceHandle:
        """A ``BasePortChannelDeviceHandle`` or ``PortChannelDeviceHandle``, for kernels."""
        with engine_errors():
            return DeviceHandle(self._native.handle)

    def signal(self) -> None:
        """Signals the other rank, after all earlier writes."""
        with engine_errors():
            self._native.signal()

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all earlier writes have arrived."""
        with engine_errors():
            self._native.flush(timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for one signal of the other rank."""
        with engine_errors():
            self._native.wait(timeout)

    def poll(self) -> bool:
        """Takes one signal of the other rank. False if there is none."""
        with engine_errors():
            return self._native.poll()


class PortChannel(BasePortChannel):
    """A channel from memory of this rank to memory of another, through a proxy thread of the host.

    Kernels use the device handle. The methods here do the same from the host, without a GPU.
    """

    def put(self, dst_offset: int, src_offset: int, size: int) -> None:
        """Copies bytes of this rank's memory into the other's."""
        with engine_errors():
            self._native.put(dst_offset, src_offset, size)

    def put_with_signal(self, dst_offset: int, src_offset: int, size: int) -> None:
        """Copies, then signals."""
        with engine_errors():
            self._native.put_with_signal(dst_offset, src_offset, size)

    def put_with_signal_and_flush(self, dst_offset: int, src_offset: int, size: int) -> None:
        """Copies, signals, and waits until both have arrived."""
        with engine_errors():
            self._native.put_with_signal_and_flush(dst_offset, src_offset, size)


class MemoryChannel:
    """A channel from memory of this rank to mapped memory of another, which kernels write themselves.

    Packets of the other rank arrive in the packet buffer.
    """

    @accept_aliases(sema="semaphore")
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
                f"invalid semaphore: must be a MemoryDevice2DeviceSemaphore, not {type(semaphore).__name__}"
            )
        RegisteredMemory.native_of(dst, "dst")
        self._semaphore = semaphore
        self._dst = dst
        self._src = src
        self._packet_buffer = packet_buffer
        self._handle: DeviceHandle | None = None

    def device_handle(self) -> DeviceHandle:
        """A ``MemoryChannelDeviceHandle``, for kernels."""
        if self._handle is None:
            src, buffer = self._src, self._packet_buffer
            with engine_errors():
                raw = _native.memory_channel_handle(
                    self._semaphore.native,
                    self._dst.native,
                    src.native if isinstance(src, RegisteredMemory) else self._dst.native,
                    buffer.native if isinstance(buffer, RegisteredMemory) else None,
                )
            # Older programs pass addresses. They are the last two words of the handle.
            if isinstance(src, int):
                raw = raw[:-16] + src.to_bytes(8, "little") + raw[-8:]
            if isinstance(buffer, int):
                raw = raw[:-8] + buffer.to_bytes(8, "little")
            self._handle = DeviceHandle(raw)
        return self._handle


SmChannel = MemoryChannel
ProxyChannel = PortChannel
