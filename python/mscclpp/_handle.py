"""What kernels are given."""

from __future__ import annotations


class DeviceHandle:
    """The bytes of a structure of the device headers. It is a plain value: whatever changes lies behind its pointers, which
    belong to the object that gave it, so that has to live as long as kernels use it.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __bytes__(self) -> bytes:
        return self.raw

    def __len__(self) -> int:
        return len(self.raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceHandle) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<DeviceHandle: {len(self.raw)} bytes>"
