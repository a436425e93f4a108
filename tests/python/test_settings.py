"""Settings by ``settings=``, variable and file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy
import pccl
import pytest
import ringfold
from ringfold import _native
from ringfold._settings import setting_pairs


def test_a_master_and_a_peer_take_settings() -> None:
    with pccl.MasterNode(
        "127.0.0.1:0", settings={"peers_max": 1, "warn_after": timedelta(seconds=3)}
    ) as master:
        with pccl.Communicator(master.address, settings={"bind": "127.0.0.1", "quic": False}) as first:
            first.connect()
            with (
                pccl.Communicator(master.address) as second,
                pytest.raises(pccl.PCCLError, match="the run is full"),
            ):
                second.connect()


def test_a_deadline_by_a_setting_ends_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFOLD_CONNECT_TIMEOUT", "1h")
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(master.address) as first:
        first.connect()
        # Nobody admits it.
        with (
            pccl.Communicator(master.address, settings={"connect_timeout": "200ms"}) as second,
            pytest.raises(pccl.PCCLError, match="MASTER_CONNECTION_FAILED"),
        ):
            second.connect(n_attempts=1)


def test_a_file_is_read_if_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[master]\nlisten = "127.0.0.1:0"\npeers_max = 2\n')
    with pccl.MasterNode(settings={"config": path}) as master:
        assert master.address.startswith("127.0.0.1:")
    path.write_text("heartbeat = 1\nhearbeat = 1\n")
    with pytest.raises(pccl.PCCLError, match='run.toml:2: unknown key "hearbeat": did you mean "heartbeat"'):
        pccl.MasterNode(settings={"config": path})


def test_unknown_and_invalid_settings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pccl.PCCLError, match='INVALID_ARGUMENT.*did you mean "heartbeat"'):
        pccl.Communicator("127.0.0.1:1", settings={"hartbeat": 1})
    with pytest.raises(pccl.PCCLError, match='INVALID_ARGUMENT.*"recover" of a peer: it is one of master'):
        ringfold.Run("127.0.0.1:1", {"w": numpy.zeros(1)}, settings={"recover": "manual"})
    with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*must be a time from"):
        pccl.MasterNode(settings={"silence_max": "soon"})
    with pytest.raises(TypeError, match="invalid setting 'silence_max': object is not"):
        pccl.MasterNode(settings={"silence_max": object()})  # type: ignore[dict-item]
    monkeypatch.setenv("RINGFOLD_QUIC", "perhaps")
    with pytest.raises(pccl.PCCLError, match='invalid RINGFOLD_QUIC "perhaps"'):
        pccl.Communicator("127.0.0.1:1")


def test_values_in_force_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFOLD_MASTERS", "10.0.0.7,node-2:5")
    assert _native.setting_masters() == "10.0.0.7:48148,node-2:5"
    assert _native.setting_seconds("group", "operation_timeout") is None
    assert (
        _native.setting_seconds("group", "operation_timeout", setting_pairs({"operation_timeout": "2min"}))
        == 120
    )
    assert _native.setting_is_on("group", "shared_memory") and "heartbeat" not in _native.setting_names(
        "group"
    )
    assert _native.setting_text("master", "recover") == "newest"
