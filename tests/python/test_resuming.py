"""All-reduces that survivors of a killed peer finish with what they have exchanged."""

from __future__ import annotations

from pathlib import Path

import pccl
import pytest
from child import Child, Spawn
from elastic_runs import begin_together
from peers import DEADLINE

np = pytest.importorskip("numpy")

WORLD = 4

# Reduces a large tensor. The last peer kills itself after a part of what it would send: it is in the middle then, on any machine.
# Bytes that are put into shared memory are not counted.
PEER = """
import os, pathlib, signal, sys, threading, time
import numpy as np, pccl

master, rank, world, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
print("ready", flush=True)
while not pathlib.Path(sys.argv[5]).exists():
    time.sleep(0.01)
of_peer = {"resume": True} if mode == "peer" else {}
of_call = {"resume": True} if mode == "call" else {}
comm = pccl.Communicator(master, name=f"p{rank}", settings={"shared_memory": False}, **of_peer)
comm.connect()
while comm.world_size < world:
    comm.update_topology()

def values(of):
    return (np.arange(16_000_003, dtype=np.float32) % 1000) + np.float32(1024 << of)

def die_in_the_middle():
    while True:
        total = comm.traffic().total
        if total.sent + total.local_sent > 0.6 * data.nbytes:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.0005)

data = values(rank)
if rank == world - 1:
    threading.Thread(target=die_in_the_middle, daemon=True).start()
try:
    info = comm.all_reduce(data, data, **of_call)
except pccl.PCCLError as error:
    same = np.array_equal(data, values(rank))
    print(f"failed: {error.result.name}, restored: {same}", flush=True)
else:
    right = np.array_equal(data, sum(values(of) for of in range(info.world_size)))
    print(f"reduced: world {info.world_size}, right: {right}, now {comm.world_size}", flush=True)
comm.leave()
"""


def reduce_and_kill(master: str, spawn: Spawn, gate: Path, mode: str) -> list[Child]:
    """Reduces with a peer that is killed in the middle. Returns the others, which have ended."""
    peers = begin_together(spawn, gate, PEER, [(master, rank, WORLD, mode) for rank in range(WORLD)])
    *survivors, victim = peers
    assert victim.wait(DEADLINE) == -9, f"it was not killed; it printed:\n{victim.output}"
    for survivor in survivors:
        survivor.succeed(DEADLINE)
    return survivors


@pytest.mark.parametrize("mode", ["call", "peer"])
def test_survivors_of_a_killed_peer_get_their_sum_without_an_error(
    master: str, spawn: Spawn, tmp_path: Path, mode: str
) -> None:
    for survivor in reduce_and_kill(master, spawn, tmp_path / "go", mode):
        assert "reduced: world 3, right: True, now 3" in survivor.output, survivor.output


def test_without_resume_the_same_kill_fails_the_call(master: str, spawn: Spawn, tmp_path: Path) -> None:
    for survivor in reduce_and_kill(master, spawn, tmp_path / "go", "none"):
        assert "failed: RANK_CONNECTION_LOST, restored: True" in survivor.output, survivor.output


def test_the_setting_is_a_variable_too(
    master: str, spawn: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RINGFOLD_RESUME", "1")
    for survivor in reduce_and_kill(master, spawn, tmp_path / "go", "none"):
        assert "reduced: world 3, right: True, now 3" in survivor.output, survivor.output


def test_a_quantised_call_cannot_be_resumed_and_is_left_out_by_the_option(master: str) -> None:
    from array import array

    from peers import connected, together

    quantized = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX)
    with connected(master, resume=True) as (a, b):
        data = [array("f", [1, 2]), array("f", [1, 2])]
        with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*cannot be resumed"):
            a.all_reduce(data[0], data[0], quantization_options=quantized, resume=True)
        together(
            *(
                lambda c=c, d=d: c.all_reduce(d, d, quantization_options=quantized)
                for c, d in zip((a, b), data)
            )
        )
        assert data[0].tolist() == data[1].tolist() == [2, 4]
