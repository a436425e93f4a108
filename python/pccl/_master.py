"""Masters in a Python process."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from pccl._require import require_integer
from ringfold import _native
from ringfold._settings import SettingValue, setting_pairs


class MasterNode:
    """A master. It accepts and coordinates peers; their data does not pass through it.

    ``listen_address`` is ``"host:port"``; port 0 means any free port (see :attr:`address`). ``token`` is the token that peers
    need to join (default: ``PCCL_JOIN_TOKEN``). ``tls`` are the paths of the certificates of the run: CA, certificate, key and,
    if there is one, revocation list (default: ``RINGFOLD_TLS_CA``, ``RINGFOLD_TLS_CERT``, ``RINGFOLD_TLS_KEY`` and
    ``RINGFOLD_TLS_REVOKED``).

    ``masters`` are the addresses of all masters of the run, this one included, in the same order everywhere: a list, or a text
    with commas, as for :class:`Communicator`. One is active, the others stand by and take over. A master finds itself in the
    list by ``listen_address``; if it cannot (behind a NAT, in a container), ``this_master`` is its position, from 1.

    When all peers that held the shared state were lost, and come back from checkpoints, ``recover`` decides which state the
    run continues from: ``"newest"``, ``"majority"`` or ``"manual"`` (default: ``RINGFOLD_RECOVER``, or ``"newest"``). The
    first that come back wait ``recover_after`` seconds for the others (``RINGFOLD_RECOVER_AFTER``, or 30).
    ``recover_min`` is the number of peers that must be back for the run to continue earlier, and that must hold a revision
    for it to win over older ones (``RINGFOLD_RECOVER_MIN``; otherwise all lost peers, and one holder).

    ``http`` is the address of an HTTP server with metrics, health, the status and a web page: ``"host:port"``, or ``"port"`` at
    127.0.0.1 (default: ``RINGFOLD_HTTP``, or off). ``http_token`` is needed to read it, if it is given
    (``RINGFOLD_HTTP_TOKEN_FILE``); ``admin_token`` to evict peers and to drain the run (``RINGFOLD_ADMIN_TOKEN_FILE``).

    ``settings`` are settings by name, as for :class:`Communicator`.

    ``run()`` serves on a native thread. A script that only calls ``run()`` serves until Ctrl-C: the end of the script, and
    the destructor, wait until the master is interrupted. An exception that ends the script also ends the master. As a
    context manager it runs on entry and ends on exit.

        >>> with MasterNode("127.0.0.1:0") as master:
        ...     master.address.startswith("127.0.0.1:")
        True
    """

    def __init__(
        self,
        listen_address: str | None = None,
        *,
        token: str | None = None,
        tls: Sequence[str] | None = None,
        masters: str | Sequence[str] | None = None,
        this_master: int | None = None,
        recover: Literal["newest", "majority", "manual"] | None = None,
        recover_after: float | None = None,
        recover_min: int | None = None,
        http: str | None = None,
        http_token: str | None = None,
        admin_token: str | None = None,
        settings: Mapping[str, SettingValue] | None = None,
    ) -> None:
        for name, number in (("this_master", this_master), ("recover_min", recover_min)):
            if number is not None:
                require_integer(number, name, 0)
        if isinstance(masters, str):
            masters = [address.strip() for address in masters.split(",")]
        self._native = _native.Master(
            listen_address,
            token,
            None if tls is None else list(tls),
            None if masters is None else list(masters),
            this_master,
            recover,
            recover_after,
            recover_min,
            http,
            http_token,
            admin_token,
            setting_pairs(settings),
        )
        self._runs = False
        self._process = os.getpid()

    def run(self) -> None:
        """Starts the master. ``INVALID_USAGE`` if the port is in use; ``INVALID_ARGUMENT`` if it was started before."""
        self._native.run()
        self._runs = True
        _living.add(self)

    @property
    def address(self) -> str:
        """The address it listens on, with the actual port."""
        addresses = self._native.addresses()
        if not addresses:
            raise RuntimeError("the master does not listen yet: call run()")
        return addresses[0]

    @property
    def http_address(self) -> str:
        """The address of its HTTP server, with the actual port."""
        addresses = self._native.http_addresses()
        if not addresses:
            raise RuntimeError("no HTTP server is running: give http, and call run()")
        return addresses[0]

    def interrupt(self) -> None:
        """Stops the master without waiting for its end. May be repeated."""
        self._native.interrupt()

    def wait(self) -> None:
        """Waits until the master has ended and its port is free. ``INVALID_USAGE`` if it was not started."""
        self._native.wait()

    def __enter__(self) -> MasterNode:
        self.run()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process == os.getpid():
            self.interrupt()
            self.wait()

    def __del__(self) -> None:
        # The constructor may have failed.
        if getattr(self, "_runs", False):
            self._serve_until_interrupt()

    def _serve_until_interrupt(self) -> None:
        """Waits for the end; Ctrl-C ends the master."""
        self._runs = False
        if self._process != os.getpid():
            # A forked child has no master.
            return
        try:
            self._native.wait()
        except KeyboardInterrupt:
            self._native.interrupt()
            self._native.wait()

    def __repr__(self) -> str:
        return f"MasterNode({', '.join(self._native.addresses()) or 'not running'})"


_living: weakref.WeakSet[MasterNode] = weakref.WeakSet()


@atexit.register
def _serve_all() -> None:
    # Before the interpreter ends: later Ctrl-C would not work.
    for master in list(_living):
        if hasattr(sys, "last_value"):
            # The script has ended with an exception or Ctrl-C.
            master.interrupt()
        if master._runs:
            master._serve_until_interrupt()
