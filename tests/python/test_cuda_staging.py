"""CUDA tensors of peers on different hosts: staged through the host, with copies and network at the same time.

The peers do not share memory, so that each counts as a host of its own.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pccl
import pytest
from elastic_runs import assert_same, begin_together
from peers import DEADLINE
from test_cuda_exchange import JOIN

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    not (pccl.cuda.is_available() and torch.cuda.is_available()), reason="there is no CUDA device here"
)


@pytest.fixture
def spawn_apart(spawn: Any) -> Any:
    """As ``spawn``, for peers on different hosts."""
    return functools.partial(spawn, env={"RINGFOLD_SHARED_MEMORY": "0"})


SAME_BITS = (
    JOIN
    + """
chance = torch.Generator().manual_seed(3000 + number)
eight = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX)
MIB = 1 << 20
sizes = [1024, 5 * MIB + 12, 64 * MIB] if world == 2 else [4 * MIB, 17 * MIB + 4]
for name, options, weight in [("float32", None, None), ("bfloat16", None, None), ("float32", eight, None),
                              ("float32", None, 0.3 + number)]:
    kind = getattr(torch, name)
    for size in sizes:
        data = (torch.randn(size // kind.itemsize + 3, generator=chance) * 20).to(kind)[3:].contiguous()
        # A slice of a tensor is not aligned to vectors.
        source = torch.zeros(data.numel() + 3, device="cuda", dtype=kind)[3:]
        into = torch.zeros_like(source)
        call = dict(op=pccl.ReduceOp.AVG, quantization_options=options, weight=weight)
        call = {name: value for name, value in call.items() if value is not None}
        # The input is not complete when the call begins.
        busy = torch.ones(2048, 2048, device="cuda")
        for _ in range(20):
            busy = busy @ busy * 0
        source.copy_(data.cuda() + busy[0, 0])
        before = sent()
        info = comm.all_reduce(source, into, **call)
        assert sent() - before >= size // 8, "it did not go through the host"
        assert info.world_size == world and torch.equal(source.cpu(), data)
        comm.all_reduce(source, source, **call)
        comm.all_reduce(data, data, **call)
        for result in (into, source):
            differ = (result.cpu().view(torch.uint8) != data.view(torch.uint8)).sum()
            assert differ == 0, f"{name} {size}: {differ} bytes differ from those of the host"

# Several at once, each with its own thread.
tensors = [torch.full((6 * MIB // 4 + i,), float(number + i), device="cuda") for i in range(4)]
handles = [comm.all_reduce_async(t, t, op=pccl.ReduceOp.SUM, tag=i) for i, t in enumerate(tensors)]
for i, (handle, tensor) in enumerate(zip(handles, tensors)):
    handle.wait()
    assert (tensor == sum(float(peer + i) for peer in range(world))).all(), i
print("same bits", flush=True)
"""
)


@pytest.mark.parametrize("world", [2, 3])
def test_results_have_the_bits_of_the_host(master: str, spawn_apart: Any, tmp_path: Path, world: int) -> None:
    peers = [(master, i, world) for i in range(world)]
    for child in begin_together(spawn_apart, tmp_path / "gate", SAME_BITS, peers):
        assert "same bits" in child.succeed(DEADLINE)


LOOP = (
    JOIN
    + """
import hashlib
COUNT = 16 << 20
data = torch.arange(COUNT, device="cuda", dtype=torch.float32) % 1000 + number
step = alone = 0
while alone < 5:
    before = data.clone()
    print(f"reduces {step}", flush=True)
    try:
        info = comm.all_reduce(data, data, op=pccl.ReduceOp.AVG)
    except pccl.PCCLError as error:
        assert torch.equal(data, before), "an aborted operation has changed the tensor"
        print(f"aborted {step}: {error}", flush=True)
        continue
    alone += info.world_size < world
    print(f"step {step} {hashlib.sha256(data.cpu().numpy()).hexdigest()} of {info.world_size}", flush=True)
    data += (torch.arange(COUNT, device="cuda") % 7) * (number + 1)
    step += 1
print("ended", flush=True)
"""
)


@pytest.mark.parametrize("delay", [0.005, 0.02, 0.05])
def test_survivors_of_a_killed_peer_keep_their_tensors_and_go_on(
    master: str, spawn_apart: Any, tmp_path: Path, delay: float
) -> None:
    children = begin_together(spawn_apart, tmp_path / "gate", LOOP, [(master, i, 3) for i in range(3)])
    for child in children:
        child.wait_for("reduces 5", DEADLINE)
    time.sleep(delay)
    os.kill(children[1].pid, signal.SIGKILL)
    outputs = [children[0].succeed(DEADLINE), children[2].succeed(DEADLINE)]
    assert all(" of 2" in output and "ended" in output for output in outputs)
    assert_same(*outputs, children[1].output)
