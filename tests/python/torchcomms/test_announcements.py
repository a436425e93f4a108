"""Announcements at MASTER_ADDR:MASTER_PORT: who gets them, and where they are served."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ports import free_port
from torchcomms import _announcement_server
from torchcomms._announcement_server import AnnouncementServer, OtherToken, fetch_announcements

TOKEN, OTHER = "a token of the ranks", "a token of others"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need longer than a second for the first byte."""
    monkeypatch.setattr(_announcement_server, "_FIRST_BYTE_SECONDS", 30.0)


def test_only_holders_of_the_token_get_announcements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RINGFOLD_JOIN_TOKEN", TOKEN)
    server = AnnouncementServer(port := free_port(), True)
    try:
        server.post("key", "address:secret")
        assert fetch_announcements("127.0.0.1", port) == {"key": "address:secret"}
        monkeypatch.delenv("RINGFOLD_JOIN_TOKEN")
        (file := tmp_path / "token").write_text(f"{TOKEN}\n")
        monkeypatch.setenv("RINGFOLD_JOIN_TOKEN_FILE", str(file))
        assert fetch_announcements("127.0.0.1", port) == {"key": "address:secret"}
        for other in (OTHER, ""):
            file.write_text(other)
            with pytest.raises(OtherToken, match="RINGFOLD_JOIN_TOKEN"):
                fetch_announcements("127.0.0.1", port)
        # A stranger that proves nothing learns nothing, and silent ones keep nobody waiting.
        file.write_text(TOKEN)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(30.0)
            stranger.sendall(b"0" * 64)
            seen = b""
            while part := stranger.recv(1000):
                seen += part
        assert seen and b"secret" not in seen
        assert fetch_announcements("127.0.0.1", port) == {"key": "address:secret"}
        for one in silent:
            one.close()
    finally:
        server.close()


def test_a_server_without_the_token_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = AnnouncementServer(port := free_port(), True)
    try:
        server.post("key", "address:secret")
        monkeypatch.setenv("RINGFOLD_JOIN_TOKEN", TOKEN)
        with pytest.raises(OtherToken):
            fetch_announcements("127.0.0.1", port)
    finally:
        server.close()


def test_it_listens_on_the_chosen_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFOLD_BIND", "127.0.0.2")
    server = AnnouncementServer(port := free_port(), False)
    try:
        assert fetch_announcements("127.0.0.2", port) == {}
        assert fetch_announcements("127.0.0.1", port) is None
    finally:
        server.close()
