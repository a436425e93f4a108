"""The flight recorder in torch's debug server."""

from __future__ import annotations

import json
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchcomms
from ranks import Ranks
from torchcomms import ReduceOp, objcol
from torchcomms.hooks.fr import FlightRecorderHook
from versions import VERSION

c10d = torch._C._distributed_c10d

pytestmark = pytest.mark.skipif(
    not hasattr(c10d, "_register_handler"), reason="this torch has no handlers in Python"
)


def _fetch(port: int, arguments: str = "") -> Any:
    url = f"http://localhost:{port}/handler/torchcomms_fr_trace_json?{arguments}"
    request = urllib.request.Request(url, method="POST")
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.status == 200 and response.headers["Content-Type"] == "application/json"
        return json.load(response)


def serve() -> tuple[Any, Any]:
    comm = torchcomms.new_comm("gloo", torch.device("cpu"), name="main")
    FlightRecorderHook().register_with_comm(comm)
    FlightRecorderHook(isolated=True).register_with_comm(comm)
    comm.all_reduce(torch.ones(4), ReduceOp.SUM, False)
    inbox = torch.zeros(2)
    if comm.get_rank() == 0:
        comm.send(torch.ones(2), 1, False)
    else:
        comm.recv(inbox, 0, False)
    server = c10d._WorkerServer("localhost", 0)
    try:
        every, active = _fetch(server.port), _fetch(server.port, "onlyactive=true")
    finally:
        server.shutdown()
    assert {entry["state"] for entry in every["entries"]} == {"completed"} and active["entries"] == []
    traces: list[Any] = [None] * 2
    objcol.all_gather_object(comm, traces, every)
    comm.finalize()
    return every, _database(traces)


def _database(traces: list[Any]) -> Any:
    """What the pages of the server show; None if its packages are missing, or torch cannot read these traces."""
    try:
        from torch.distributed.debug._debug_handlers import FlightRecorderHandler
    except ImportError:
        return None
    # Older versions of torch ask the response itself for its status.
    status = {"status_code": 200, "raise_for_status": lambda: None}
    responses: Any = [SimpleNamespace(**status, json=lambda trace=trace: trace) for trace in traces]
    try:
        database = FlightRecorderHandler._build_db(["a", "b"], responses)
    except AssertionError:
        if VERSION >= (2, 15):
            raise
        # Older ones know the names of NCCL's collectives alone.
        return None
    return [len(database.groups), len(database.collectives), len(database.ncclcalls)]


def test_the_server_returns_the_recorder_and_torch_reads_it(ranks: Ranks) -> None:
    for trace, database in ranks.run(2, serve):
        assert trace["version"] == "2.10" and trace["pg_config"]["main"]["ranks"] == "[0,1]"
        assert [entry["profiling_name"].split(":")[1].split()[0] for entry in trace["entries"]][
            0
        ] == "all_reduce"
        assert len(trace["entries"]) == 2
        assert database is None or database[0] == 2 and database[2] == 4
