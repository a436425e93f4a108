"""How rank 0's address reaches the other ranks: by a store of torch, or at MASTER_ADDR:MASTER_PORT.

Each communicator uses one key with our prefix, so that the store can serve others too.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from torchcomms._announcement_server import (
    AnnouncementServer,
    NotAnnouncements,
    SharedServers,
    fetch_announcements,
)

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

# Replaces a withdrawn announcement. Readers would wait for a deleted key.
_WITHDRAWN = "-"
_CONNECT = timedelta(seconds=10)


class AddressExchange(Protocol):
    """Passes rank 0's announcement to the other ranks. The native module calls all methods but ``close``."""

    def post(self, text: str) -> None: ...
    def read(self) -> str | None: ...
    def withdraw(self) -> None: ...
    def describe(self) -> str: ...
    def close(self) -> None: ...


def open_exchange(name: str, store: Store | None, timeout: float) -> AddressExchange:
    """The address exchange for the communicator of this name."""
    key = f"ringfold/{name}"
    if store is not None:
        return StoreExchange(key, store)
    return MasterExchange(_attempt() + key, *_master(), timeout)


class StoreExchange:
    """Announcements in a store of the caller."""

    def __init__(self, key: str, store: Store) -> None:
        self._key = key
        self._store: Store | None = store

    def post(self, text: str) -> None:
        self._require().set(self._key, text)

    def read(self) -> str | None:
        store = self._require()
        # A store's get() waits for a missing key.
        if not store.check([self._key]):
            return None
        text = store.get(self._key).decode()
        return None if text == _WITHDRAWN else text

    def withdraw(self) -> None:
        self._require().set(self._key, _WITHDRAWN)

    def describe(self) -> str:
        return f"the store's key {self._key!r}"

    def close(self) -> None:
        self._store = None

    def _require(self) -> Store:
        if self._store is None:
            raise RuntimeError("the address exchange is closed: the ranks have connected, or failed to")
        return self._store


class MasterExchange:
    """Announcements at MASTER_ADDR:MASTER_PORT.

    Rank 0 serves them until the ranks have connected, unless a TCPStore listens there already: that of torchrun's agent or of
    torch.distributed. The others poll.
    """

    def __init__(self, key: str, host: str, port: int, timeout: float) -> None:
        self._key = key
        self._host = host
        self._port = port
        self._deadline = time.monotonic() + timeout
        self._server: AnnouncementServer | None = None
        self._stored: StoreExchange | None = None

    def post(self, text: str) -> None:
        if self._server is None and self._stored is None:
            if not _is_agents():
                self._server = _servers.acquire(self._host, self._port, self._deadline)
            if self._server is None:
                self._stored = StoreExchange(self._key, _clients.get(self._host, self._port))
        if self._server is not None:
            self._server.post(self._key, text)
        elif self._stored is not None:
            self._stored.post(text)

    def read(self) -> str | None:
        if self._stored is None and not _is_agents() and not _clients.has(self._host, self._port):
            try:
                texts = fetch_announcements(self._host, self._port)
            except NotAnnouncements:
                pass
            else:
                return None if texts is None else texts.get(self._key)
        try:
            if self._stored is None:
                self._stored = StoreExchange(self._key, _clients.get(self._host, self._port))
            return self._stored.read()
        except RuntimeError:
            # The store has closed; another server may take the port.
            _clients.forget(self._host, self._port)
            self._stored = None
            return None

    def withdraw(self) -> None:
        if self._server is not None:
            self._server.withdraw(self._key)
        elif self._stored is not None:
            self._stored.withdraw()

    def describe(self) -> str:
        return f"{self._host}:{self._port} (MASTER_ADDR, MASTER_PORT) under {self._key!r}"

    def close(self) -> None:
        self._stored = None
        if self._server is not None:
            self._server.withdraw(self._key)
            self._server = None
            _servers.release(self._port)


class _StoreClients:
    """Connections to stores at MASTER_ADDR:MASTER_PORT.

    They are kept: such a store outlives communicators, and torch resolves the host name for each new connection, which takes
    seconds without a name server.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, str, int], TCPStore] = {}

    def has(self, host: str, port: int) -> bool:
        return (os.getpid(), host, port) in self._kept

    def get(self, host: str, port: int) -> TCPStore:
        from torch._C._distributed_c10d import TCPStore

        with self._lock:
            # The pid: a forked process needs its own.
            key = (os.getpid(), host, port)
            if key not in self._kept:
                self._kept[key] = TCPStore(
                    host, port, is_master=False, timeout=_CONNECT, wait_for_workers=False
                )
            return self._kept[key]

    def forget(self, host: str, port: int) -> None:
        with self._lock:
            self._kept.pop((os.getpid(), host, port), None)


_servers = SharedServers()
_clients = _StoreClients()


def _master() -> tuple[str, int]:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        missing = "MASTER_ADDR" if not host else "MASTER_PORT"
        raise RuntimeError(f"{missing} is not set: the ranks need it to find rank 0; set it, or pass a store")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise RuntimeError(f"MASTER_PORT is {port!r}: must be a port number, 1 to 65535")
    return host, int(port)


def _attempt() -> str:
    """A key prefix for this attempt: torchrun restarts all ranks after a failure, with the same store."""
    run, attempt = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ.get("TORCHELASTIC_RESTART_COUNT")
    return "".join(f"{part}/" for part in (run, attempt) if part)


def _is_agents() -> bool:
    """Whether torchrun's agent serves a store at MASTER_PORT."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
