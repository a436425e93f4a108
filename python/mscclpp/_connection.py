"""A way from this rank to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mscclpp._errors import invalid, told
from mscclpp._memory import RegisteredMemory
from mscclpp._spelling import also
from mscclpp._transport import Transport, transport_of

if TYPE_CHECKING:
    from mscclpp._communicator import Communicator
    from ringfold import _native


class Connection:
    """Writes into another rank's registered memory, in the order of the calls. They go on by themselves: neither a flush nor
    a call over there is needed. Any thread may call.
    """

    def __init__(self, native: _native.PortConnection, communicator: Communicator) -> None:
        self._native = native
        # Its port has to live as long.
        self._communicator = communicator

    @property
    def native(self) -> _native.PortConnection:
        """The engine's object."""
        return self._native

    @property
    def communicator(self) -> Communicator:
        """Whose it is."""
        return self._communicator

    @also(dstOffset="dst_offset", srcOffset="src_offset")
    def write(
        self, dst: RegisteredMemory, dst_offset: int, src: RegisteredMemory, src_offset: int, size: int
    ) -> None:
        """Writes bytes of this rank's memory into the other rank's."""
        _at_least_zero(dst_offset=dst_offset, src_offset=src_offset, size=size)
        target, source = RegisteredMemory.native_of(dst, "dst"), RegisteredMemory.native_of(src, "src")
        with told():
            self._native.write(target, dst_offset, source, src_offset, size)

    def update(self, dst: RegisteredMemory, dst_offset: int, value: int) -> None:
        """Sets a word of 8 bytes, behind all writes before."""
        _at_least_zero(dst_offset=dst_offset)
        target = RegisteredMemory.native_of(dst, "dst")
        with told():
            self._native.update(target, dst_offset, value & (1 << 64) - 1)

    @also(dstOffset="dst_offset", src_ptr="src", newValue="new_value")
    def update_and_sync(self, dst: RegisteredMemory, dst_offset: int, src: int, new_value: int) -> None:
        """Sets a word of 8 bytes over there, behind all writes before, and the word of the host at the address ``src``."""
        _at_least_zero(dst_offset=dst_offset)
        target = RegisteredMemory.native_of(dst, "dst")
        if not hasattr(src, "__index__"):
            raise invalid(f"src is the address of a word of the host, not {type(src).__name__}")
        with told():
            self._native.update_and_sync(target, dst_offset, int(src), new_value & (1 << 64) - 1)

    def flush(self, timeout_usec: int = -1) -> None:
        """Waits until all writes before have left this rank's memory and lie in the other's; for ever if negative."""
        with told():
            self._native.flush(None if timeout_usec < 0 else timeout_usec / 1e6)

    def transport(self) -> Transport:
        """The way it takes."""
        return transport_of(self._native.transport)

    def remote_transport(self) -> Transport:
        """The same: both ends take one way."""
        return self.transport()

    def remote_rank(self) -> int:
        """The rank at the other end."""
        return self._native.peer

    def get_max_write_queue_size(self) -> int:
        """How many writes may be on their way: as many as are asked for."""
        return -1

    def __repr__(self) -> str:
        return f"<Connection to rank {self.remote_rank()}, {self.transport().name}>"


def _at_least_zero(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise invalid(f"{name} is {number}, but starts at 0")
