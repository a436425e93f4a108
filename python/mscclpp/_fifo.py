"""The FIFO through which kernels send requests to the host."""

from __future__ import annotations

from mscclpp._errors import engine_errors, invalid
from mscclpp._handle import DeviceHandle
from ringfold import _native

FIFO_SIZE = 512


class ProxyTrigger:
    """A trigger: two 8-byte words. The highest bit of the second is reserved and reads 0."""

    __slots__ = ("_is_present", "fst", "snd")

    def __init__(self, fst: int = 0, snd: int = 0, is_present: bool = True) -> None:
        self.fst = fst
        self.snd = snd
        self._is_present = is_present

    def __bool__(self) -> bool:
        return self._is_present

    def __repr__(self) -> str:
        return f"ProxyTrigger(fst={self.fst:#x}, snd={self.snd:#x})" if self else "ProxyTrigger()"


class Fifo:
    """A FIFO of triggers. Kernels push by its device handle; the host polls and pops. With ``on_gpu=False`` the host pushes.

    >>> fifo = Fifo(4, on_gpu=False)
    >>> bool(fifo.poll()), fifo.poll().fst
    (False, 0)
    >>> fifo.push(7, 9)
    0
    >>> fifo.poll()
    ProxyTrigger(fst=0x7, snd=0x9)
    >>> fifo.pop()
    >>> fifo.sync(0)
    """

    def __init__(self, size: int = FIFO_SIZE, *, on_gpu: bool | None = None) -> None:
        if size < 1:
            raise invalid(f"invalid FIFO size: {size} triggers; must be at least 1")
        with engine_errors():
            self._native = _native.PortFifo(size, on_gpu)

    def poll(self) -> ProxyTrigger:
        """The next trigger, which stays in the FIFO. A false one with zeros if there is none."""
        with engine_errors():
            found = self._native.poll()
        return ProxyTrigger(0, 0, False) if found is None else ProxyTrigger(*found)

    def pop(self) -> None:
        """Removes the next trigger; ``sync`` for it returns."""
        with engine_errors():
            self._native.pop()

    def size(self) -> int:
        """The capacity in triggers."""
        return self._native.size

    def push(self, fst: int, snd: int) -> int:
        """Pushes from the host (``on_gpu=False``); returns the position, for :meth:`sync`."""
        with engine_errors():
            return self._native.push(fst, snd)

    def sync(self, position: int, timeout: float | None = None) -> None:
        """Waits until the trigger at a position has been popped."""
        with engine_errors():
            self._native.sync(position, timeout)

    def device_handle(self) -> DeviceHandle:
        """A ``FifoDeviceHandle``, for kernels."""
        return DeviceHandle(self._native.handle)
