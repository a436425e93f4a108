"""Registered memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mscclpp._errors import engine_errors, invalid
from mscclpp._transport import TransportFlags

if TYPE_CHECKING:
    from mscclpp._communicator import Communicator
    from ringfold import _native


class RegisteredMemory:
    """Memory of this rank that others can write, or of another rank that this one can.

    Made by :meth:`mscclpp.Communicator.register_memory` for own memory, and :meth:`mscclpp.Communicator.recv_memory` for that of
    another rank.
    """

    def __init__(self, native: _native.PortMemory, is_lasting: bool = False) -> None:
        self.native = native
        """The engine's object."""
        self.is_lasting = is_lasting
        """Whether it stays registered after it was sent, even without this object."""

    @staticmethod
    def native_of(memory: object, name: str) -> _native.PortMemory:
        """The engine's object of an argument, which must be a RegisteredMemory."""
        if not isinstance(memory, RegisteredMemory):
            raise invalid(
                f"invalid {name}: must be a RegisteredMemory, not {type(memory).__name__}; use Communicator.register_memory"
            )
        return memory.native

    def data(self) -> int:
        """Its address in this process; 0 if it is not mapped."""
        return self.native.address

    def size(self) -> int:
        """Its size in bytes."""
        return self.native.nbytes

    def transports(self) -> TransportFlags:
        """The transports by which it can be written."""
        return TransportFlags._of(self.native.transports)

    def is_device(self) -> bool:
        """Whether it is GPU memory."""
        return self.native.is_device

    def serialize(self) -> bytes:
        """A record of it for other processes."""
        with engine_errors():
            return self.native.serialize()

    @staticmethod
    def deserialize(record: bytes, communicator: Communicator | None = None) -> RegisteredMemory:
        """Another rank's memory, by its record. By default the newest communicator of this process maps it."""
        from mscclpp._communicator import latest

        try:
            data = bytes(memoryview(record))
        except TypeError:
            raise invalid(
                f"invalid record of type {type(record).__name__}: must be bytes of serialize()"
            ) from None
        port = (communicator or latest()).port
        with engine_errors():
            return RegisteredMemory(port.remote(data))

    def __repr__(self) -> str:
        where = "GPU" if self.is_device() else "host"
        return f"<RegisteredMemory: {self.size()} bytes, {where}, {self.transports()!r}>"
