"""Announcements at MASTER_ADDR:MASTER_PORT, for as long as someone meets there.

Rank 0 serves them itself: a store of torch's that comes and goes at one port has its clients fail loudly, and looks up names
of hosts, which may take seconds. Whoever connects is told all announcements, and the connection is closed.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time

_BANNER = b"ringfold announcements 1\n"
# How long one that listens has to say the first word. A store of torch's never does: there the client begins.
_FIRST_WORD_SECONDS = 1.0
_TALK_SECONDS = 5.0
_BYTES_MAX = 1 << 20


class Silence(Exception):
    """Someone listens there, but it is no bulletin."""


class Bulletin:
    """The announcements that this process serves at a port."""

    def __init__(self, port: int, is_local: bool) -> None:
        """Raises OSError if the port is taken. If it is local, only processes of this host are answered."""
        has_both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if has_both else socket.AF_INET
        self._door = socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=has_both)
        self._is_local = is_local
        self._texts: dict[str, str] = {}
        self._is_over = False
        self._thread = threading.Thread(target=self._serve, name="torchcomms-bulletin", daemon=True)
        self._thread.start()

    def post(self, key: str, text: str) -> None:
        self._texts = {**self._texts, key: text}

    def withdraw(self, key: str) -> None:
        self._texts = {other: text for other, text in self._texts.items() if other != key}

    def close(self) -> None:
        """When this returns, nobody listens at the port."""
        self._is_over = True
        # Closing alone would leave the thread, and with it the port, where it is.
        try:
            self._door.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._door.close()
        self._thread.join(_TALK_SECONDS)

    def _serve(self) -> None:
        while not self._is_over:
            try:
                guest, (address, *_) = self._door.accept()
            except OSError:
                return
            with guest:
                if self._is_local and not _is_loopback(address):
                    continue
                guest.settimeout(_TALK_SECONDS)
                try:
                    guest.sendall(_BANNER + json.dumps(self._texts).encode())
                except OSError:
                    continue


def look(host: str, port: int) -> dict[str, str] | None:
    """The announcements there; None if nobody listens. Raises :class:`Silence` if it is something else that does."""
    try:
        with socket.create_connection((host, port), _TALK_SECONDS) as line:
            line.settimeout(_FIRST_WORD_SECONDS)
            heard = line.recv(1 << 16)
            line.settimeout(_TALK_SECONDS)
            while heard and len(heard) < _BYTES_MAX and (part := line.recv(1 << 16)):
                heard += part
    except TimeoutError:
        raise Silence from None
    except OSError:
        return None
    if not heard:
        return None
    if not heard.startswith(_BANNER):
        raise Silence
    try:
        texts: dict[str, str] = json.loads(heard[len(_BANNER) :])
    except ValueError:
        # It was cut off.
        return None
    return texts


class Bulletins:
    """Those of this process: communicators that are made at the same time share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], tuple[Bulletin, int]] = {}

    def enter(self, host: str, port: int, until: float) -> Bulletin | None:
        """The one at this port, which is left again by ``leave``; None if someone else has the port for good."""
        while True:
            with self._lock:
                # A forked process has to have its own.
                key = (os.getpid(), port)
                bulletin, meetings = self._held.get(key, (None, 0))
                try:
                    bulletin = bulletin or Bulletin(port, _is_loopback(host))
                except OSError:
                    pass
                if bulletin is not None:
                    self._held[key] = (bulletin, meetings + 1)
                    return bulletin
            try:
                look(host, port)
            except Silence:
                return None
            # It was somebody else's bulletin, and those do not last.
            if time.monotonic() > until:
                return None
            time.sleep(0.02)

    def leave(self, port: int) -> None:
        with self._lock:
            key = (os.getpid(), port)
            bulletin, meetings = self._held.pop(key)
            if meetings > 1:
                self._held[key] = (bulletin, meetings - 1)
                return
            bulletin.close()


def _is_loopback(host: str) -> bool:
    """
    >>> [_is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "node1")]
    [True, True, True, True, False, False]
    """
    return host in ("localhost", "::1") or host.removeprefix("::ffff:").startswith("127.")
