"""Semaphores: a word at each end of a connection that the other end increments."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from mscclpp._aliases import accept_aliases
from mscclpp._connection import Connection
from mscclpp._errors import engine_errors, invalid
from mscclpp._handle import DeviceHandle

if TYPE_CHECKING:
    from mscclpp._communicator import Communicator
    from mscclpp._future import Future
    from ringfold import _native


class Semaphore:
    """A word at each end of a connection that the other end increments.

    It is used through :class:`Host2DeviceSemaphore`, :class:`Host2HostSemaphore` or :class:`MemoryDevice2DeviceSemaphore`; one
    semaphore may have several.
    """

    def __init__(self, native: _native.PortSemaphore, connection: Connection) -> None:
        self.native = native
        """The engine's object."""
        self._connection = connection

    def connection(self) -> Connection:
        """Its connection."""
        return self._connection


class _Cursor(ABC):
    """A use of a semaphore, with its own count of the signals it has waited for.

    Made of a :class:`Semaphore`, or of a communicator and a connection. Then the other rank makes the same call, and the first
    use waits for it.
    """

    @accept_aliases(communicator="semaphore")
    def __init__(self, semaphore: Semaphore | Communicator, connection: Connection | None = None) -> None:
        self._semaphore: Semaphore | None = None
        self._future: Future[Semaphore] | None = None
        self._cursor: _native.PortSemaphoreCursor | None = None
        self._lock = threading.Lock()
        if isinstance(semaphore, Semaphore):
            self._connection = semaphore.connection()
            self._semaphore = semaphore
            return
        if connection is None or not hasattr(semaphore, "build_semaphore"):
            raise invalid(
                f"invalid arguments of {type(self).__name__}: must be a semaphore, or a communicator and a connection"
            )
        self._connection = connection
        self._future = semaphore.build_semaphore(connection)

    def semaphore(self) -> Semaphore:
        """Its semaphore."""
        if self._semaphore is None:
            assert self._future is not None
            self._semaphore = self._future.get()
        return self._semaphore

    def connection(self) -> Connection:
        """Its connection."""
        return self._connection

    @property
    def native(self) -> _native.PortSemaphoreCursor:
        """The engine's object."""
        if self._cursor is None:
            semaphore = self.semaphore()
            # Locked: there must be only one count.
            with self._lock, engine_errors():
                if self._cursor is None:
                    self._cursor = self._make(semaphore.native)
        return self._cursor

    @abstractmethod
    def _make(self, native: _native.PortSemaphore) -> _native.PortSemaphoreCursor:
        """The engine's object of this kind."""


class _HostCursor(_Cursor):
    """A semaphore that the host signals."""

    def signal(self) -> None:
        """Signals the other rank, after all earlier writes of the connection."""
        with engine_errors():
            self.native.signal()

    def poll(self) -> bool:
        """Takes one signal of the other rank. False if there is none."""
        with engine_errors():
            return self.native.poll()

    def wait(self, max_spin_count: int = -1, *, timeout: float | None = None) -> None:
        """Waits for one signal of the other rank, for so many checks or seconds; without a limit, until the rank dies."""
        with engine_errors():
            self.native.wait(timeout, max_spin_count)


class Host2DeviceSemaphore(_HostCursor):
    """The host signals, and a kernel waits by the device handle; without a GPU the host waits."""

    def _make(self, native: _native.PortSemaphore) -> _native.PortSemaphoreCursor:
        return native.host_to_device()

    def device_handle(self) -> DeviceHandle:
        """A ``Host2DeviceSemaphoreDeviceHandle``, for kernels."""
        with engine_errors():
            return DeviceHandle(self.native.handle)


class Host2HostSemaphore(_HostCursor):
    """The host signals, and the host waits."""

    def _make(self, native: _native.PortSemaphore) -> _native.PortSemaphoreCursor:
        return native.host_to_host()


class MemoryDevice2DeviceSemaphore(_Cursor):
    """Kernels signal and wait, by the device handle."""

    def _make(self, native: _native.PortSemaphore) -> _native.PortSemaphoreCursor:
        return native.memory()

    def device_handle(self) -> DeviceHandle:
        """A ``MemoryDevice2DeviceSemaphoreDeviceHandle``, for kernels."""
        with engine_errors():
            return DeviceHandle(self.native.handle)


SmDevice2DeviceSemaphore = MemoryDevice2DeviceSemaphore
