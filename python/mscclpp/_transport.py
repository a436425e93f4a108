"""Transports and sets of transports."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from mscclpp._errors import IbError


class Transport(Enum):
    """How bytes go from rank to rank.

    >>> Transport.CudaIpc | Transport.Ethernet
    TransportFlags(CudaIpc | Ethernet)
    """

    Unknown = 0
    CudaIpc = 1
    """GPU memory, between processes of one host."""
    Ethernet = 2
    """TCP, between any two processes."""
    SharedMemory = 4
    """Host memory, between processes of one host. Fastest with a :class:`mscclpp.HostBuffer`."""
    IB0 = 8
    IB1 = 16
    IB2 = 32
    IB3 = 64
    IB4 = 128
    IB5 = 256
    IB6 = 512
    IB7 = 1024

    @property
    def is_ib(self) -> bool:
        """Whether it is an InfiniBand device."""
        return self.value >= Transport.IB0.value

    def __or__(self, other: Transport | TransportFlags) -> TransportFlags:
        return TransportFlags(self) | other

    def __and__(self, other: Transport | TransportFlags) -> TransportFlags:
        return TransportFlags(self) & other

    def __xor__(self, other: Transport | TransportFlags) -> TransportFlags:
        return TransportFlags(self) ^ other

    def __sub__(self, other: Transport | TransportFlags) -> TransportFlags:
        return TransportFlags(self) - other

    def __invert__(self) -> TransportFlags:
        return ~TransportFlags(self)


_ALL = sum(transport.value for transport in Transport)


class TransportFlags:
    """A set of transports.

    >>> flags = TransportFlags(Transport.CudaIpc) | Transport.Ethernet
    >>> flags.has(Transport.Ethernet), Transport.IB0 in flags, flags.count()
    (True, False, 2)
    >>> flags & ~Transport.CudaIpc
    TransportFlags(Ethernet)
    """

    __slots__ = ("_bits",)

    def __init__(self, *transports: Transport | TransportFlags) -> None:
        self._bits = 0
        for transport in transports:
            self._bits |= _bits(transport)

    @classmethod
    def _of(cls, bits: int) -> TransportFlags:
        flags = cls()
        flags._bits = bits & _ALL
        return flags

    @property
    def value(self) -> int:
        """The set as bits."""
        return self._bits

    def has(self, transport: Transport) -> bool:
        """Whether a transport is in it."""
        return bool(self._bits & transport.value)

    def none(self) -> bool:
        """Whether it is empty."""
        return not self._bits

    def any(self) -> bool:
        """Whether it is not empty."""
        return bool(self._bits)

    def all(self) -> bool:
        """Whether every transport is in it."""
        return self._bits == _ALL

    def count(self) -> int:
        """The number of transports in it."""
        return self._bits.bit_count()

    def __or__(self, other: Transport | TransportFlags) -> TransportFlags:
        return self._of(self._bits | _bits(other))

    def __and__(self, other: Transport | TransportFlags) -> TransportFlags:
        return self._of(self._bits & _bits(other))

    def __xor__(self, other: Transport | TransportFlags) -> TransportFlags:
        return self._of(self._bits ^ _bits(other))

    def __sub__(self, other: Transport | TransportFlags) -> TransportFlags:
        return self._of(self._bits & ~_bits(other))

    def __invert__(self) -> TransportFlags:
        return self._of(~self._bits)

    __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def __contains__(self, transport: Transport) -> bool:
        return self.has(transport)

    def __iter__(self) -> Iterator[Transport]:
        return (transport for transport in Transport if self.has(transport))

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return self.any()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Transport | TransportFlags):
            return self._bits == _bits(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._bits)

    def __repr__(self) -> str:
        return f"TransportFlags({' | '.join(transport.name for transport in self)})"


def _bits(one: Transport | TransportFlags) -> int:
    if isinstance(one, Transport | TransportFlags):
        return int(one.value)
    raise TypeError(f"invalid transport: must be a Transport or TransportFlags, not {type(one).__name__}")


def no_infiniband(transport: Transport) -> IbError:
    """The error for InfiniBand transports."""
    return IbError(
        0,
        f"unsupported transport {transport.name}: no InfiniBand; use Transport.Ethernet between hosts, and Transport.CudaIpc or "
        "Transport.SharedMemory within one",
    )
