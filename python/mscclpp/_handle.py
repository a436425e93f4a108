"""Device handles: the parameters of kernels for channels and semaphores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class DeviceHandle:
    """The bytes of a structure of the device headers.

    Its pointers belong to the object that made it, which has to live as long as kernels use the handle.
    """

    raw: bytes

    def __bytes__(self) -> bytes:
        return self.raw

    def __len__(self) -> int:
        return len(self.raw)

    def __repr__(self) -> str:
        return f"<DeviceHandle: {len(self.raw)} bytes>"
