"""The queue through which kernels ask the host for something."""

from __future__ import annotations

from mscclpp._errors import invalid, told
from mscclpp._handle import DeviceHandle
from ringfold import _native

FIFO_SIZE = 512


class ProxyTrigger:
    """What a kernel has pushed: two words of 8 bytes. The highest bit of the second is the queue's own and reads 0."""

    __slots__ = ("_is_there", "fst", "snd")

    def __init__(self, fst: int = 0, snd: int = 0, is_there: bool = True) -> None:
        self.fst = fst
        self.snd = snd
        self._is_there = is_there

    def __bool__(self) -> bool:
        return self._is_there

    def __repr__(self) -> str:
        return f"ProxyTrigger(fst={self.fst:#x}, snd={self.snd:#x})" if self else "ProxyTrigger()"


class Fifo:
    """A queue of triggers. Kernels push by its device handle; the host polls and pops. Without a GPU the host may push, too.

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
            raise invalid(f"a queue of {size} triggers is none")
        with told():
            self._native = _native.PortFifo(size, on_gpu)

    def poll(self) -> ProxyTrigger:
        """The next trigger; it stays where it is. One that is false, with zeros in it, if there is none."""
        with told():
            found = self._native.poll()
        return ProxyTrigger(0, 0, False) if found is None else ProxyTrigger(*found)

    def pop(self) -> None:
        """The next trigger is done with; whoever waits for that by ``sync`` goes on."""
        with told():
            self._native.pop()

    def size(self) -> int:
        """How many triggers it holds at most."""
        return self._native.size

    def push(self, fst: int, snd: int) -> int:
        """Pushes from the host, where the queue was made without a GPU; gives the position, for :meth:`sync`."""
        with told():
            return self._native.push(fst, snd)

    def sync(self, position: int, timeout: float | None = None) -> None:
        """Waits until the trigger at a position has been popped."""
        with told():
            self._native.sync(position, timeout)

    def device_handle(self) -> DeviceHandle:
        """A ``FifoDeviceHandle``, for kernels."""
        return DeviceHandle(self._native.handle)
