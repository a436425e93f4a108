"""Where ranks leave each other word before they have met: a store of torch's, given or at MASTER_ADDR:MASTER_PORT.

One key is used for each communicator, under a name of our own, so that the store may serve others as well.
"""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

# What an announcement is replaced by when it is taken back. A deleted key would have a reader wait for it.
_WITHDRAWN = "-"
# How long a look at whether someone listens, and a connection to a store that does, may take.
_KNOCK_SECONDS = 2.0
_CONNECT = timedelta(seconds=10)


class Notice(Protocol):
    """The native module's view of a place where rank 0 leaves word for the others."""

    def post(self, text: str) -> None: ...
    def read(self) -> str | None: ...
    def withdraw(self) -> None: ...
    def describe(self) -> str: ...
    def close(self) -> None:
        """Lets go of the store."""
        ...


def notice(name: str, rank: int, store: Store | None) -> Notice:
    """Where the ranks of a communicator of this name leave word."""
    key = f"ringfold/{name}"
    if store is not None:
        return StoreNotice(key, store)
    return MasterNotice(_attempt() + key, rank, *_master())


class StoreNotice:
    """Word in a store that someone else looks after."""

    def __init__(self, key: str, store: Store) -> None:
        self._key = key
        self._store: Store | None = store

    def post(self, text: str) -> None:
        self._require().set(self._key, text)

    def read(self) -> str | None:
        store = self._require()
        # A store's get() waits for a key that is not there.
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
            raise RuntimeError("the ranks have met, or given up")
        return self._store


class MasterNotice:
    """Word in a TCPStore at MASTER_ADDR:MASTER_PORT. Rank 0 serves it for as long as the meeting takes, unless somebody does already:
    torchrun's agent, torch.distributed, or another communicator of this process. The others come when they can.
    """

    def __init__(self, key: str, rank: int, host: str, port: int) -> None:
        self._key = key
        self._rank = rank
        self._host = host
        self._port = port
        self._notice: StoreNotice | None = None
        self._is_server = False

    def post(self, text: str) -> None:
        if self._notice is None:
            served = None if _is_agents() else _servers.enter(self._host, self._port)
            self._is_server = served is not None
            self._notice = StoreNotice(self._key, served or _clients.of(self._host, self._port))
        self._notice.post(text)

    def read(self) -> str | None:
        try:
            if self._notice is None:
                if not _is_agents() and not _is_served(self._host, self._port):
                    return None
                self._notice = StoreNotice(self._key, _clients.of(self._host, self._port))
            return self._notice.read()
        except RuntimeError:
            # It served an earlier meeting, and went away with it. The next look finds the next one.
            _clients.forget(self._host, self._port)
            self._notice = None
            return None

    def withdraw(self) -> None:
        if self._notice is not None:
            self._notice.withdraw()

    def describe(self) -> str:
        return f"the key {self._key!r} of the store at {self._host}:{self._port} (MASTER_ADDR, MASTER_PORT)"

    def close(self) -> None:
        if self._notice is not None:
            self._notice.close()
            self._notice = None
        if self._is_server:
            self._is_server = False
            _servers.leave(self._host, self._port)


class _Servers:
    """The stores that this process serves, each for as long as someone meets there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[tuple[str, int], tuple[TCPStore, int]] = {}

    def enter(self, host: str, port: int) -> TCPStore | None:
        """The store that we serve there; None if someone else has the port."""
        with self._lock:
            store, meetings = self._stores.get((host, port), (None, 0))
            if store is None and (_is_taken(port) or (store := _server(host, port)) is None):
                return None
            self._stores[host, port] = (store, meetings + 1)
            return store

    def leave(self, host: str, port: int) -> None:
        with self._lock:
            store, meetings = self._stores.pop((host, port))
            if meetings > 1:
                self._stores[host, port] = (store, meetings - 1)


_servers = _Servers()


class _Clients:
    """Connections to stores of others. The one to torchrun's agent is kept: it outlives all communicators, and torch asks for the
    name of the host at each new one, which takes seconds where nobody answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, str, int], TCPStore] = {}

    def of(self, host: str, port: int) -> TCPStore:
        if not _is_agents():
            return _client(host, port)
        with self._lock:
            # A forked process has to have its own.
            key = (os.getpid(), host, port)
            if key not in self._kept:
                self._kept[key] = _client(host, port)
            return self._kept[key]

    def forget(self, host: str, port: int) -> None:
        with self._lock:
            self._kept.pop((os.getpid(), host, port), None)


_clients = _Clients()


def _master() -> tuple[str, int]:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        missing = "MASTER_ADDR" if not host else "MASTER_PORT"
        raise RuntimeError(
            f"{missing} is not set, so the ranks do not know where to meet: set it, or give a store"
        )
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise RuntimeError(f"MASTER_PORT is {port!r}, which is no port that others could know")
    return host, int(port)


def _attempt() -> str:
    """torchrun starts all ranks again when one fails; its store is the same, and holds what the first ones said."""
    run, attempt = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ.get("TORCHELASTIC_RESTART_COUNT")
    return "".join(f"{part}/" for part in (run, attempt) if part)


def _is_agents() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _is_taken(port: int) -> bool:
    # torch would say so at length on standard error.
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("", port))
        except OSError:
            return True
        return False


def _is_served(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _KNOCK_SECONDS).close()
    except OSError:
        return False
    return True


def _server(host: str, port: int) -> TCPStore | None:
    from torch._C._distributed_c10d import TCPStore

    try:
        return TCPStore(host, port, is_master=True, timeout=_CONNECT, wait_for_workers=False)
    except RuntimeError:
        return None


def _client(host: str, port: int) -> TCPStore:
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(host, port, is_master=False, timeout=_CONNECT, wait_for_workers=False)
