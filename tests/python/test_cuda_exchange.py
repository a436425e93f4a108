"""CUDA tensors of peers on one host: reduced in device memory, hashed there, and safe when a peer is killed.

The peers are processes, because CUDA IPC does not work between threads of one process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pccl
import pytest
from elastic_runs import assert_same, begin_together, steps_of
from peers import DEADLINE, connected, together

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    not (pccl.cuda.is_available() and torch.cuda.is_available()), reason="there is no CUDA device here"
)

JOIN = """
import pathlib, sys, time
import pccl, torch

master, number, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.zeros(1, device="cuda")
print("ready", flush=True)
while not pathlib.Path(sys.argv[-1]).exists():
    time.sleep(0.01)
comm = pccl.Communicator(master, name=f"p{number}")
comm.connect()
while comm.world_size < world:
    comm.update_topology()

def sent():
    total = comm.traffic().total
    return total.local_sent + total.sent
"""

SAME_BITS = (
    JOIN
    + """
chance = torch.Generator().manual_seed(1000 + number)
cases = [("float32", "SUM", 1_000_003), ("float32", "AVG", 300_001), ("bfloat16", "AVG", 1_000_001),
         ("float16", "MAX", 500_001), ("float64", "PROD", 200_003), ("int64", "SUM", 70_001), ("uint8", "MIN", 900_001)]
for name, op, count in cases:
    kind = getattr(torch, name)
    values = torch.randn(count + 5, generator=chance) * 50
    host = values.to(kind) if kind.is_floating_point else (values.abs() % 100).to(kind)
    for offset in (0, 3):
        data = host[offset:offset + count].contiguous()
        # A slice of a tensor is not aligned to vectors.
        on_device = host.cuda()[offset:offset + count]
        into = torch.zeros_like(on_device)
        before = sent()
        info = comm.all_reduce(on_device, into, op=pccl.ReduceOp[op])
        assert sent() - before < 65536, f"{name} {op}: {sent() - before} bytes went through the host"
        assert info.world_size == world and torch.equal(on_device.cpu(), data)
        comm.all_reduce(on_device, on_device, op=pccl.ReduceOp[op])
        comm.all_reduce(data, data, op=pccl.ReduceOp[op])
        for result in (into, on_device):
            same = torch.equal(result.cpu().view(torch.uint8), data.view(torch.uint8))
            assert same, f"{name} {op} {count} at {offset}: the bits differ from those of the host"
for name, weight in [("float32", 0.3), ("bfloat16", 1.7), ("float16", 3.0), ("float64", 0.01)]:
    data = (torch.randn(600_001, generator=chance) * 20).to(getattr(torch, name))
    data[7] = float("nan") if number == 0 else 1.0
    on_device, share = data.cuda(), weight * (number + 0.1)
    before = sent()
    comm.all_reduce(on_device, on_device, op=pccl.ReduceOp.AVG, weight=share)
    assert sent() - before < 65536, f"{name}: {sent() - before} bytes went through the host"
    comm.all_reduce(data, data, op=pccl.ReduceOp.AVG, weight=share)
    differ = (on_device.cpu().view(torch.uint8) != data.view(torch.uint8)).sum()
    assert differ == 0, f"weighted {name}: {differ} bytes differ from those of the host"
print("same bits", flush=True)
"""
)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_results_have_the_bits_of_the_host_and_stay_on_the_device(
    master: str, spawn: Any, tmp_path: Path, world: int
) -> None:
    children = begin_together(spawn, tmp_path / "gate", SAME_BITS, [(master, i, world) for i in range(world)])
    for child in children:
        assert "same bits" in child.succeed(DEADLINE)


QUANTISED = (
    JOIN
    + """
chance = torch.Generator().manual_seed(2000 + number)
Kind, How = pccl.DataType, pccl.QuantizationAlgorithm
cases = [("float32", Kind.UINT8, How.MIN_MAX), ("float32", Kind.INT8, How.ZERO_POINT_SCALE),
         ("float32", Kind.UINT16, How.MIN_MAX), ("float32", Kind.INT16, How.ZERO_POINT_SCALE),
         ("float32", Kind.UINT32, How.MIN_MAX), ("float64", Kind.INT32, How.ZERO_POINT_SCALE),
         ("float64", Kind.UINT8, How.MIN_MAX), ("bfloat16", Kind.UINT8, How.MIN_MAX),
         ("float16", Kind.UINT16, How.ZERO_POINT_SCALE)]
for name, kind, how in cases:
    options = pccl.QuantizationOptions(quantized_datatype=kind, algorithm=how)
    for op, count in [(("AVG", 700_003), ("SUM", 150_001), ("MAX", 262_144))[cases.index((name, kind, how)) % 3]]:
        values = torch.randn(count, generator=chance, dtype=torch.float64) * 10 ** (number - 1)
        # Chunks of equal elements, of zeros, with a NaN, with infinities, and with huge and tiny ranges.
        values[:20_000] = 42.0 + number
        values[20_000:60_000] = 0.0
        values[100_000] = float("nan") if number == 0 else 1.0
        values[140_000] = float("inf") if count > 600_000 else -1.0
        if name != "float16":
            values[30_000] = 1e38
            values[30_001] = -3e38
        data = values.to(getattr(torch, name))
        on_device = data.cuda()
        into, before = torch.zeros_like(on_device), sent()
        call = dict(op=pccl.ReduceOp[op], quantization_options=options)
        comm.all_reduce(on_device, into, **call)
        if world == 2 and count * data.element_size() >= 262_144:
            assert sent() - before < 65536, f"{name} {kind}: {sent() - before} bytes went through the host"
        comm.all_reduce(on_device, on_device, **call)
        comm.all_reduce(data, data, **call)
        for result in (into, on_device):
            differ = (result.cpu().view(torch.uint8) != data.view(torch.uint8)).sum()
            assert differ == 0, f"{name} {kind} {how} {op}: {differ} of the bytes differ from those of the host"
print("same bits", flush=True)
"""
)


@pytest.mark.parametrize("world", [2, 3])
def test_quantised_results_have_the_bits_of_the_host(
    master: str, spawn: Any, tmp_path: Path, world: int
) -> None:
    children = begin_together(spawn, tmp_path / "gate", QUANTISED, [(master, i, world) for i in range(world)])
    for child in children:
        assert "same bits" in child.succeed(DEADLINE)


MIXED = (
    JOIN
    + """
for step in range(20):
    data = torch.full((200_000,), float(number + step))
    if (step + number) % world:
        data = data.cuda()
    comm.all_reduce(data, data)
    want = sum(float(i + step) for i in range(world))
    assert torch.equal(data.cpu(), torch.full((200_000,), want)), step
print("mixed", flush=True)
"""
)


@pytest.mark.parametrize("world", [2, 3])
def test_tensors_on_the_host_and_on_devices_are_reduced_together(
    master: str, spawn: Any, tmp_path: Path, world: int
) -> None:
    children = begin_together(spawn, tmp_path / "gate", MIXED, [(master, i, world) for i in range(world)])
    for child in children:
        assert "mixed" in child.succeed(DEADLINE)


LOOP = (
    JOIN
    + """
import hashlib
data = torch.arange(4_000_000, device="cuda", dtype=torch.float32) % 1000 + number
step = alone = 0
pause = int(sys.argv[4])
while alone < 30:
    before = data.clone()
    if number == 1 and step == pause:
        print("pauses", flush=True)
        time.sleep(1000)
    try:
        info = comm.all_reduce(data, data, op=pccl.ReduceOp.AVG)
    except pccl.PCCLError as error:
        assert torch.equal(data, before), "an aborted operation has changed the tensor"
        print(f"aborted {step}: {error}", flush=True)
        continue
    alone += info.world_size < world
    if step % 20 == 0 or alone:
        print(f"step {step} {hashlib.sha256(data.cpu().numpy()).hexdigest()} of {info.world_size}", flush=True)
    data += (torch.arange(4_000_000, device="cuda") % 7) * (number + 1)
    step += 1
print("ended", flush=True)
"""
)


@pytest.mark.parametrize("delay", [None, 0.0, 0.013, 0.03])
def test_survivors_of_a_killed_peer_keep_their_tensors_and_go_on(
    master: str, spawn: Any, tmp_path: Path, delay: float | None
) -> None:
    pause = 45 if delay is None else -1
    children = begin_together(spawn, tmp_path / "gate", LOOP, [(master, i, 3, pause) for i in range(3)])
    for child in children:
        child.wait_for("step 40 ", DEADLINE)
    if delay is None:
        # The others wait for it in an operation, which must be aborted.
        children[1].wait_for("pauses", DEADLINE)
        children[0].wait_until_blocked()
    time.sleep(delay or 0.0)
    os.kill(children[1].pid, signal.SIGKILL)
    outputs = [children[0].succeed(DEADLINE), children[2].succeed(DEADLINE)]
    assert all(" of 2" in output and "ended" in output for output in outputs)
    assert delay is not None or all("aborted 45" in output for output in outputs)
    assert_same(*outputs, children[1].output)


RUN = """
import hashlib, pathlib, sys, time
import ringfold, torch
from ringfold.diloco import DiLoCo

master, number, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.manual_seed(number)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 1)).cuda()
inputs = torch.randn(256, 512, device="cuda")
print("ready", flush=True)
while not pathlib.Path(sys.argv[-1]).exists():
    time.sleep(0.01)

def digest():
    content = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(content).hexdigest()

def loss():
    model.zero_grad()
    loss = (model(inputs) - 1).square().mean()
    loss.backward()

if kind == "diloco":
    diloco = DiLoCo(model)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    with ringfold.Run(master, state=diloco, name=f"p{number}") as run:
        for step in run.steps(until=40):
            for _ in range(3):
                loss()
                inner.step()
            diloco.step(run)
            print(f"step {step} {digest()} of {run.world_size}", flush=True)
            time.sleep(0.02)
else:
    with ringfold.Run(master, state={"model": model}, name=f"p{number}") as run:
        for step in run.steps(until=40):
            loss()
            gradients = [p.grad for p in model.parameters()]
            run.average(gradients)
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
            print(f"step {step} {digest()} of {run.world_size}", flush=True)
            time.sleep(0.02)
print("ended", flush=True)
"""


@pytest.mark.parametrize("kind", ["run", "diloco"])
def test_training_on_the_device_goes_on_with_equal_bits_when_a_peer_is_killed(
    master: str, spawn: Any, tmp_path: Path, kind: str
) -> None:
    peers = begin_together(spawn, tmp_path / "gate", RUN, [(master, i, kind) for i in range(3)])
    for peer in peers:
        peer.wait_for("step 8 ", DEADLINE)
    peers[1].kill()
    outputs = [peers[0].succeed(DEADLINE), peers[2].succeed(DEADLINE)]
    assert_same(*outputs, peers[1].output)
    assert all(set(range(12, 40)) <= set(steps_of(output)) for output in outputs)
    assert all("step 39" in output and " of 2" in output for output in outputs)


def in_threads(comms: list[pccl.Communicator], body: Callable[[pccl.Communicator, int], Any]) -> list[Any]:
    return together(*(lambda comm=comm, i=i: body(comm, i) for i, comm in enumerate(comms)))


def test_a_state_has_the_same_hash_on_the_device_and_in_main_memory(master: str) -> None:
    torch.manual_seed(3)
    leaf = 65536
    lengths = [
        0,
        1,
        7,
        63,
        64,
        240,
        241,
        255,
        256,
        1023,
        1024,
        1025,
        1087,
        1088,
        1089,
        leaf - 1,
        leaf,
        leaf + 1,
    ]
    lengths += [leaf + 240, leaf + 241, 3 * leaf + 17, 5 * leaf, 9_000_001]
    offsets = [0, 1, 2, 3, 5, 8, 13, 15]
    base = torch.randint(0, 256, (9_000_001,), dtype=torch.uint8)
    pieces = [(length, offsets[i % len(offsets)]) for i, length in enumerate(lengths * 2)]
    changed = lengths.index(3 * leaf + 17)

    def body(comm: pccl.Communicator, number: int) -> tuple[int, int]:
        where = "cuda" if number else "cpu"
        tensors = []
        for length, offset in pieces:
            room = torch.zeros(length + 16, dtype=torch.uint8, device=where)
            tensors.append(room[offset : offset + length])
            tensors[-1].copy_(base[:length])
        state = pccl.SharedState([pccl.TensorInfo.from_torch(t, f"{i}") for i, t in enumerate(tensors)])
        same = comm.sync_shared_state(state).rx_bytes
        # One byte of a tensor with a last leaf that is not whole.
        if number:
            tensors[changed][leaf + 77] ^= 1
        state.push_revision()
        fetched = comm.sync_shared_state(state).rx_bytes
        state.push_revision()
        assert comm.sync_shared_state(state).rx_bytes == 0
        return same, fetched

    with connected(master) as comms:
        results = in_threads(comms, body)
    assert [same for same, _ in results] == [0, 0], "the hashes of equal contents differ"
    assert sum(fetched for _, fetched in results) == 3 * leaf + 17


def test_a_large_state_on_the_device_is_served_and_fetched(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> Any:
        values = torch.full((3_000_001,), float(number), device="cuda")
        state = pccl.SharedState([pccl.TensorInfo.from_torch(values, "values")])
        strategy = pccl.SharedStateSyncStrategy
        info = comm.sync_shared_state(state, strategy.RECEIVE_ONLY if number else strategy.SEND_ONLY)
        return info.rx_bytes, info.tx_bytes, values.cpu()

    with connected(master) as comms:
        (none, sent, first), (received, _, second) = in_threads(comms, body)
    assert (none, sent, received) == (0, 12_000_004, 12_000_004)
    assert torch.equal(first, torch.zeros(3_000_001)) and torch.equal(second, first)


def test_many_operations_in_flight_have_areas_of_their_own(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> None:
        tensors = [torch.full((300_000,), float(tag + number), device="cuda") for tag in range(12)]
        handles = [comm.all_reduce_async(t, t, tag=tag) for tag, t in enumerate(tensors)]
        for tag, handle in enumerate(handles):
            assert handle.wait()[0]
            assert torch.equal(tensors[tag].cpu(), torch.full((300_000,), 2.0 * tag + 1))

    with connected(master) as comms:
        in_threads(comms, body)
    assert threading.active_count() < 50


def test_different_lengths_fail_and_change_nothing(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> None:
        data = torch.full((300_000 + number,), 5.0, device="cuda")
        with pytest.raises(pccl.PCCLError):
            comm.all_reduce(data, data)
        assert torch.equal(data.cpu(), torch.full((300_000 + number,), 5.0))

    with connected(master) as comms:
        in_threads(comms, body)


def test_every_kernel_runs_between_threads(master: str) -> None:
    """Small, for sanitizers: no kernel waits for another, so the peers may be threads."""
    none = pccl.QuantizationOptions()
    bytes_, words = (
        pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX),
        pccl.QuantizationOptions(pccl.DataType.INT16, pccl.QuantizationAlgorithm.ZERO_POINT_SCALE),
    )

    def body(comm: pccl.Communicator, number: int) -> list[Any]:
        results = []
        for options, weight in ((none, None), (bytes_, None), (words, None), (none, 1.0 + number)):
            data = torch.arange(70_003, device="cuda") % 1000 + float(number)
            comm.all_reduce(data, data, op=pccl.ReduceOp.AVG, quantization_options=options, weight=weight)
            results.append(data.cpu())
        whole = (torch.arange(5_000_037, device="cuda") * 7).to(torch.uint8)
        parts = [whole[3:70_000], whole[70_001:70_200], whole[70_208:]]
        state = pccl.SharedState([pccl.TensorInfo.from_torch(p, f"{i}") for i, p in enumerate(parts)])
        assert comm.sync_shared_state(state).rx_bytes == 0
        return results

    with connected(master) as comms:
        one, two = in_threads(comms, body)
    for left, right in zip(one, two, strict=True):
        assert torch.equal(left, right)
    assert torch.equal(one[0], torch.arange(70_003) % 1000 + 0.5)
