"""The HTTP server of a master, as Python programs use it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import pccl
import pytest
from peers import DEADLINE, connected

TOKEN = "an admin token"


def ask(address: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    """The body of the answer; an exception if the server refuses."""
    data = None if body is None else json.dumps(body).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}{path}", data, {**kind, **(headers or {})})
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        text = answer.read().decode()
        return json.loads(text) if answer.headers["Content-Type"] == "application/json" else text


def test_the_status_and_the_metrics_are_those_of_the_run() -> None:
    with pccl.MasterNode("127.0.0.1:0", http="0", admin_token=TOKEN) as master:
        address = master.http_address
        assert address.startswith("127.0.0.1:") and ask(address, "/healthz") == "ok\n"
        with connected(master.address, 2):
            status = ask(address, "/api/status")
            # The order is that of joining, which the two did at once.
            assert {peer["name"] for peer in status["peers"]} == {"a", "b"}
            assert status["health"] == "healthy" and len(status["ring"]) == 2
            assert 'ringfold_peers{membership="member"} 2' in ask(address, "/metrics")
    with pytest.raises(urllib.error.URLError):
        ask(address, "/healthz")


def test_a_peer_is_evicted_with_the_token_only() -> None:
    with pccl.MasterNode("127.0.0.1:0", http="127.0.0.1:0", admin_token=TOKEN) as master:
        with connected(master.address, 2) as peers:
            body = {"peer": "b", "reason": "maintenance"}
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(master.http_address, "/api/evict", body)
            assert refused.value.code == 401 and "admin token" in json.load(refused.value)["error"]
            answer = ask(master.http_address, "/api/evict", body, {"Authorization": f"Bearer {TOKEN}"})
            assert "b" in answer["done"]
            with pytest.raises(pccl.PCCLError, match="maintenance") as evicted:
                peers[1].update_topology()
            # `Run` joins again after other removals.
            assert evicted.value.kind == "evicted"
            names: list[str] = []
            deadline = time.monotonic() + DEADLINE
            while names != ["a"]:
                assert time.monotonic() < deadline
                names = [peer["name"] for peer in ask(master.http_address, "/api/status")["peers"]]


def test_without_http_there_is_no_address() -> None:
    with pccl.MasterNode("127.0.0.1:0") as master, pytest.raises(RuntimeError, match="http"):
        master.http_address  # noqa: B018


@pytest.mark.parametrize("address", ["no such host", "127.0.0.1:99999"])
def test_an_invalid_address_is_an_error(address: str) -> None:
    with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*HTTP address"):
        pccl.MasterNode("127.0.0.1:0", http=address).run()
