"""Memory that other ranks can write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mscclpp._errors import invalid, told
from mscclpp._transport import TransportFlags

if TYPE_CHECKING:
    from mscclpp._communicator import Communicator
    from ringfold import _native


class RegisteredMemory:
    """Memory of this rank that others can write, or of another rank that this one can.

    :meth:`mscclpp.Communicator.register_memory` makes it of one's own memory, :meth:`mscclpp.Communicator.recv_memory` gives
    another rank's.
    """

    def __init__(self, native: _native.PortMemory, is_lasting: bool = False) -> None:
        self._native = native
        self.is_lasting = is_lasting
        """Whether it stays open, once others were told of it, though this object is gone."""

    @staticmethod
    def native_of(memory: object, name: str) -> _native.PortMemory:
        """The engine's object of an argument that has to be registered memory."""
        if not isinstance(memory, RegisteredMemory):
            raise invalid(
                f"{name} is a RegisteredMemory, not {type(memory).__name__}: Communicator.register_memory makes one"
            )
        return memory.native

    @property
    def native(self) -> _native.PortMemory:
        """The engine's object."""
        return self._native

    def data(self) -> int:
        """The address at which this process can reach it, 0 if it can't."""
        return self._native.address

    def size(self) -> int:
        """How many bytes it has."""
        return self._native.nbytes

    def transports(self) -> TransportFlags:
        """The ways by which it can be written."""
        return TransportFlags._of(self._native.transports)

    def is_device(self) -> bool:
        """Whether it is a GPU's."""
        return self._native.is_device

    def serialize(self) -> bytes:
        """A record of it for other processes."""
        with told():
            return self._native.serialize()

    @staticmethod
    def deserialize(record: bytes, communicator: Communicator | None = None) -> RegisteredMemory:
        """Another rank's memory, by its record. Without a communicator the one of this process that was made last, and lives,
        maps it."""
        from mscclpp._communicator import latest

        try:
            data = bytes(memoryview(record))
        except TypeError:
            raise invalid(f"a record is bytes that serialize() gave, not {type(record).__name__}") from None
        port = (communicator or latest()).port
        with told():
            return RegisteredMemory(port.remote(data))

    def __repr__(self) -> str:
        where = "GPU" if self.is_device() else "host"
        return f"<RegisteredMemory: {self.size()} bytes, {where}, {self.transports()!r}>"
