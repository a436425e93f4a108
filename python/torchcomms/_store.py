"""Where ranks leave each other word before they have met: a store of torch's, or MASTER_ADDR:MASTER_PORT.

In a store one key is used for each communicator, under a name of our own, so that it may serve others as well.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from torchcomms._bulletin import Bulletin, Bulletins, Silence, look

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

# What an announcement is replaced by when it is taken back. A deleted key would have a reader wait for it.
_WITHDRAWN = "-"
_CONNECT = timedelta(seconds=10)


class Notice(Protocol):
    """The native module's view of a place where rank 0 leaves word for the others."""

    def post(self, text: str) -> None: ...
    def read(self) -> str | None: ...
    def withdraw(self) -> None: ...
    def describe(self) -> str: ...
    def close(self) -> None:
        """Lets go of the place."""
        ...


def notice(name: str, store: Store | None, patience: float) -> Notice:
    """Where the ranks of a communicator of this name leave word."""
    key = f"ringfold/{name}"
    if store is not None:
        return StoreNotice(key, store)
    return MasterNotice(_attempt() + key, *_master(), patience)


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
    """Word at MASTER_ADDR:MASTER_PORT. Rank 0 has it there for as long as the meeting takes, unless a store of torch's is there already:
    torchrun's agent's, or that of torch.distributed. The others come when they can.
    """

    def __init__(self, key: str, host: str, port: int, patience: float) -> None:
        self._key = key
        self._host = host
        self._port = port
        self._until = time.monotonic() + patience
        self._bulletin: Bulletin | None = None
        self._stored: StoreNotice | None = None

    def post(self, text: str) -> None:
        if self._bulletin is None and self._stored is None:
            if not _is_agents():
                self._bulletin = _bulletins.enter(self._host, self._port, self._until)
            if self._bulletin is None:
                self._stored = StoreNotice(self._key, _clients.of(self._host, self._port))
        if self._bulletin is not None:
            self._bulletin.post(self._key, text)
        elif self._stored is not None:
            self._stored.post(text)

    def read(self) -> str | None:
        if self._stored is None and not _is_agents() and not _clients.has(self._host, self._port):
            try:
                texts = look(self._host, self._port)
            except Silence:
                pass
            else:
                return None if texts is None else texts.get(self._key)
        try:
            if self._stored is None:
                self._stored = StoreNotice(self._key, _clients.of(self._host, self._port))
            return self._stored.read()
        except RuntimeError:
            # Whoever served it is gone; somebody else may come.
            _clients.forget(self._host, self._port)
            self._stored = None
            return None

    def withdraw(self) -> None:
        if self._bulletin is not None:
            self._bulletin.withdraw(self._key)
        elif self._stored is not None:
            self._stored.withdraw()

    def describe(self) -> str:
        return f"{self._host}:{self._port} (MASTER_ADDR, MASTER_PORT) under {self._key!r}"

    def close(self) -> None:
        self._stored = None
        if self._bulletin is not None:
            self._bulletin.withdraw(self._key)
            self._bulletin = None
            _bulletins.leave(self._port)


class _Clients:
    """Connections to stores of others. They are kept, because such a store outlives communicators, and torch asks for the name of the
    host at each new one, which takes seconds where nobody answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, str, int], TCPStore] = {}

    def has(self, host: str, port: int) -> bool:
        return (os.getpid(), host, port) in self._kept

    def of(self, host: str, port: int) -> TCPStore:
        from torch._C._distributed_c10d import TCPStore

        with self._lock:
            # A forked process has to have its own.
            key = (os.getpid(), host, port)
            if key not in self._kept:
                self._kept[key] = TCPStore(
                    host, port, is_master=False, timeout=_CONNECT, wait_for_workers=False
                )
            return self._kept[key]

    def forget(self, host: str, port: int) -> None:
        with self._lock:
            self._kept.pop((os.getpid(), host, port), None)


_bulletins = Bulletins()
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
