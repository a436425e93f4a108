"""Semaphores: a word at each end of a connection, which the other end counts up."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from mscclpp._connection import Connection
from mscclpp._errors import invalid, told
from mscclpp._handle import DeviceHandle
from mscclpp._spelling import also

if TYPE_CHECKING:
    from mscclpp._communicator import Communicator
    from mscclpp._future import Future
    from ringfold import _native


class Semaphore:
    """A word of this rank that the other end of a connection counts up, and the other way round. It belongs to this object and
    to those that were made of it, and several may be: :class:`Host2DeviceSemaphore`, :class:`Host2HostSemaphore`,
    :class:`MemoryDevice2DeviceSemaphore`.
    """

    def __init__(self, native: _native.PortSemaphore, connection: Connection) -> None:
        self._native = native
        self._connection = connection

    @property
    def native(self) -> _native.PortSemaphore:
        """The engine's object."""
        return self._native

    def connection(self) -> Connection:
        """The connection that it is at the end of."""
        return self._connection


class _View(ABC):
    """One way to use a semaphore, with a count of its own of what it has waited for.

    Made of a :class:`Semaphore`, or of a communicator and a connection: the other rank does the same then, and whatever comes
    first of what needs it waits for that.
    """

    @also(communicator="semaphore")
    def __init__(self, semaphore: Semaphore | Communicator, connection: Connection | None = None) -> None:
        self._semaphore: Semaphore | None = None
        self._future: Future[Semaphore] | None = None
        self._made: _native.PortSemaphoreFace | None = None
        self._lock = threading.Lock()
        if isinstance(semaphore, Semaphore):
            self._connection = semaphore.connection()
            self._semaphore = semaphore
            return
        if connection is None or not hasattr(semaphore, "build_semaphore"):
            raise invalid(
                f"{type(self).__name__} is made of a semaphore, or of a communicator and a connection"
            )
        self._connection = connection
        self._future = semaphore.build_semaphore(connection)

    def semaphore(self) -> Semaphore:
        """The semaphore that it was made of."""
        if self._semaphore is None:
            assert self._future is not None
            self._semaphore = self._future.get()
        return self._semaphore

    def connection(self) -> Connection:
        """The connection that it is at the end of."""
        return self._connection

    @property
    def native(self) -> _native.PortSemaphoreFace:
        """The engine's object."""
        if self._made is None:
            semaphore = self.semaphore()
            # One, for it is what counts.
            with self._lock, told():
                if self._made is None:
                    self._made = self._make(semaphore.native)
        return self._made

    @abstractmethod
    def _make(self, native: _native.PortSemaphore) -> _native.PortSemaphoreFace:
        """The engine's object for this way."""


class _Host(_View):
    """A semaphore that the host signals by its connection."""

    def signal(self) -> None:
        """Counts the other end's word up, behind all that this connection has written."""
        with told():
            self.native.signal()

    def poll(self) -> bool:
        """Whether the other end has signalled once more; if so, that is used up."""
        with told():
            return self.native.poll()

    def wait(self, max_spin_count: int = -1, *, timeout: float | None = None) -> None:
        """Waits for one signal of the other end: as long as it takes to look so often, or so many seconds; for ever if neither is
        said, for a rank that died ends it.
        """
        with told():
            self.native.wait(timeout, max_spin_count)


class Host2DeviceSemaphore(_Host):
    """The host signals, and a kernel waits by the device handle; where there is no GPU the host waits, too."""

    def _make(self, native: _native.PortSemaphore) -> _native.PortSemaphoreFace:
        return native.host_to_device()

    def device_handle(self) -> DeviceHandle:
        """A ``Host2DeviceSemaphoreDeviceHandle``, for kernels."""
        with told():
            return DeviceHandle(self.native.handle)


class Host2HostSemaphore(_Host):
    """The host signals, and the host waits."""

    def _make(self, native: _native.PortSemaphore) -> _native.PortSemaphoreFace:
        return native.host_to_host()


class MemoryDevice2DeviceSemaphore(_View):
    """Kernels signal and wait, by the device handle."""

    def _make(self, native: _native.PortSemaphore) -> _native.PortSemaphoreFace:
        return native.memory()

    def device_handle(self) -> DeviceHandle:
        """A ``MemoryDevice2DeviceSemaphoreDeviceHandle``, for kernels."""
        with told():
            return DeviceHandle(self.native.handle)


SmDevice2DeviceSemaphore = MemoryDevice2DeviceSemaphore
