"""Connections between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mscclpp._aliases import accept_aliases
from mscclpp._errors import engine_errors, invalid
from mscclpp._memory import RegisteredMemory
from mscclpp._transport import Transport

if TYPE_CHECKING:
    from mscclpp._communicator import Communicator
    from ringfold import _native


class Connection:
    """Writes another rank's registered memory, in the order of the calls. Any thread may call.

    Writes proceed without a flush and without a call of the other rank.
    """

    def __init__(self, native: _native.PortConnection, communicator: Communicator) -> None:
        self.native = native
        """The engine's object."""
        self.communicator = communicator
        """Its communicator, which it keeps alive."""

    @accept_aliases(dstOffset="dst_offset", srcOffset="src_offset")
    def write(
        self, dst: RegisteredMemory, dst_offset: int, src: RegisteredMemory, src_offset: int, size: int
    ) -> None:
        """Copies bytes of this rank's memory into the other rank's."""
        _at_least_zero(dst_offset=dst_offset, src_offset=src_offset, size=size)
        target, source = RegisteredMemory.native_of(dst, "dst"), RegisteredMemory.native_of(src, "src")
        with engine_errors():
            self.native.write(target, dst_offset, source, src_offset, size)

    def update(self, dst: RegisteredMemory, dst_offset: int, value: int) -> None:
        """Sets an 8-byte word, after all earlier writes."""
        _at_least_zero(dst_offset=dst_offset)
        target = RegisteredMemory.native_of(dst, "dst")
        with engine_errors():
            self.native.update(target, dst_offset, value & (1 << 64) - 1)

    @accept_aliases(dstOffset="dst_offset", src_ptr="src", newValue="new_value")
    def update_and_sync(self, dst: RegisteredMemory, dst_offset: int, src: int, new_value: int) -> None:
        """As :meth:`update`, and also sets the word of host memory at the address ``src``."""
        _at_least_zero(dst_offset=dst_offset)
        target = RegisteredMemory.native_of(dst, "dst")
        if not hasattr(src, "__index__"):
            raise invalid(
                f"invalid src of type {type(src).__name__}: must be the address of a word in host memory"
            )
        with engine_errors():
            self.native.update_and_sync(target, dst_offset, int(src), new_value & (1 << 64) - 1)

    def flush(self, timeout_usec: int = -1) -> None:
        """Waits until all earlier writes are in the other rank's memory. A negative timeout is no limit."""
        with engine_errors():
            self.native.flush(None if timeout_usec < 0 else timeout_usec / 1e6)

    def transport(self) -> Transport:
        """Its transport."""
        return Transport(self.native.transport)

    def remote_transport(self) -> Transport:
        """The same as :meth:`transport`."""
        return self.transport()

    def remote_rank(self) -> int:
        """The rank at the other end."""
        return self.native.peer

    def get_max_write_queue_size(self) -> int:
        """-1: the number of pending writes is not limited."""
        return -1

    def __repr__(self) -> str:
        return f"<Connection to rank {self.remote_rank()}, {self.transport().name}>"


def _at_least_zero(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise invalid(f"invalid offset or size: {name} is {number}, must be >= 0")
