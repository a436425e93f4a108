"""Announcements that rank 0 serves at MASTER_ADDR:MASTER_PORT while ranks connect.

A TCPStore of torch does not fit: its clients fail noisily when it closes, and it resolves host names, which may take seconds.
Every connection receives all announcements, in clear, and is then closed. With a token (``RINGFOLD_JOIN_TOKEN`` or
``RINGFOLD_JOIN_TOKEN_FILE``) both sides first prove that they know it.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path

from ringfold import _native

_BANNER = b"ringfold announcements 1\n"
# Followed by a number, with which both sides prove the token.
_GUARDED = b"ringfold announcements 1 for holders of the token "
_PROOF_BYTES = 64
_ANSWERED_MAX = 64
# How long a server may take to send its first byte. A TCPStore sends none: there the client speaks first.
_FIRST_BYTE_SECONDS = 1.0
_TRANSFER_SECONDS = 5.0
_BYTES_MAX = 1 << 20


class NotAnnouncements(Exception):
    """Something else than an announcement server listens at the port."""


class OtherToken(RuntimeError):
    """One side has no token, or another one."""


class AnnouncementServer:
    """The announcements that this process serves at a port, by key."""

    def __init__(self, port: int, is_local: bool) -> None:
        """Raises OSError if the port is in use. With ``is_local``, only processes of this host get an answer.

        It listens on the address of the setting ``bind``, or on all.
        """
        bind = _native.setting_text("group", "bind") or ""
        has_both = not bind and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if has_both or ":" in bind else socket.AF_INET
        self._listener = socket.create_server(
            (bind, port), family=family, backlog=1024, dualstack_ipv6=has_both
        )
        self._token = _token()
        self._places = threading.BoundedSemaphore(_ANSWERED_MAX)
        self._is_local = is_local
        self._texts: dict[str, str] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="torchcomms-announcements", daemon=True)
        self._thread.start()

    def post(self, key: str, text: str) -> None:
        self._texts = {**self._texts, key: text}

    def withdraw(self, key: str) -> None:
        self._texts = {other: text for other, text in self._texts.items() if other != key}

    def close(self) -> None:
        """Closes the port before it returns."""
        self._is_closed = True
        # close() alone would not wake the thread in accept(), which keeps the port.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self._thread.join(_TRANSFER_SECONDS)

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                connection, (address, *_) = self._listener.accept()
            except OSError:
                return
            if (self._is_local and not _is_loopback(address)) or not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_TRANSFER_SECONDS)
                body, banner, nonce = (
                    json.dumps(self._texts).encode(),
                    _BANNER,
                    secrets.token_hex(16).encode(),
                )
                if self._token:
                    connection.sendall(_GUARDED + nonce + b"\n")
                    proof = connection.recv(_PROOF_BYTES)
                    if not hmac.compare_digest(proof, _proof(self._token, nonce)):
                        return
                    banner = _proof(self._token, nonce + body)
                connection.sendall(banner + body)
        except OSError:
            return
        finally:
            self._places.release()


def fetch_announcements(host: str, port: int) -> dict[str, str] | None:
    """The announcements at a port; None if nothing listens. Raises :class:`NotAnnouncements` if something else does.

    Raises :class:`OtherToken` if the server does not have the token of this process.
    """
    token, nonce, banner = _token(), b"", _BANNER
    try:
        with socket.create_connection((host, port), _TRANSFER_SECONDS) as connection:
            connection.settimeout(_FIRST_BYTE_SECONDS)
            data = connection.recv(1 << 16)
            connection.settimeout(_TRANSFER_SECONDS)
            is_guarded = data.startswith(_GUARDED)
            if token and is_guarded:
                nonce = data.removeprefix(_GUARDED).strip()
                connection.sendall(_proof(token, nonce))
                data = connection.recv(1 << 16)
            # A server with a token sends nothing more to a client without one.
            is_over = is_guarded and not token
            while data and not is_over and len(data) < _BYTES_MAX and (part := connection.recv(1 << 16)):
                data += part
    except TimeoutError:
        raise NotAnnouncements from None
    except OSError:
        return None
    if nonce:
        banner = data[:_PROOF_BYTES]
        is_proven = hmac.compare_digest(banner, _proof(token, nonce + data[_PROOF_BYTES:]))
    elif not data:
        return None
    elif not data.startswith((_BANNER, _GUARDED)):
        raise NotAnnouncements
    else:
        is_proven = not token and data.startswith(_BANNER)
    if not is_proven:
        raise OtherToken(
            f"rank 0 at {host}:{port} and this rank do not have the same token: set RINGFOLD_JOIN_TOKEN or "
            "RINGFOLD_JOIN_TOKEN_FILE to the same value on all ranks, or on none"
        )
    try:
        texts: dict[str, str] = json.loads(data[len(banner) :])
    except ValueError:
        # The connection broke.
        return None
    return texts


class SharedServers:
    """The servers of this process by port, with the number of users of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], tuple[AnnouncementServer, int]] = {}

    def acquire(self, host: str, port: int, deadline: float) -> AnnouncementServer | None:
        """The server at this port; call ``release`` after use. None if another program keeps the port."""
        while True:
            with self._lock:
                # The pid: a forked process needs its own.
                key = (os.getpid(), port)
                server, users = self._held.get(key, (None, 0))
                try:
                    server = server or AnnouncementServer(port, _is_loopback(host))
                except OSError:
                    pass
                if server is not None:
                    self._held[key] = (server, users + 1)
                    return server
            try:
                fetch_announcements(host, port)
            except NotAnnouncements:
                return None
            except OtherToken:
                pass
            # It is the announcement server of another process, which closes soon.
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)

    def release(self, port: int) -> None:
        with self._lock:
            key = (os.getpid(), port)
            server, users = self._held.pop(key)
            if users > 1:
                self._held[key] = (server, users - 1)
                return
            server.close()


def _token() -> bytes:
    """The token of this process; empty without one."""
    token = _native.setting_text("peer", "join_token")
    path = _native.setting_text("peer", "join_token_file")
    if token is None and path is not None:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        token = lines[0].strip() if lines else None
    return (token or "").encode()


def _proof(token: bytes, message: bytes) -> bytes:
    return hmac.new(token, b"torchcomms announcements " + message, "sha256").hexdigest().encode()


def _is_loopback(host: str) -> bool:
    """
    >>> [_is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "node1")]
    [True, True, True, True, False, False]
    """
    return host in ("localhost", "::1") or host.removeprefix("::ffff:").startswith("127.")
