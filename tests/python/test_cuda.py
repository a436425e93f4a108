"""CUDA tensors in all-reduces and in shared state; on a machine with a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pccl
import pytest

torch = pytest.importorskip("torch")

needs_gpu = pytest.mark.skipif(
    not (pccl.cuda.is_available() and torch.cuda.is_available()), reason="there is no CUDA device here"
)


def peers(address: str, body: Callable[[pccl.Communicator, int], Any], world: int = 2) -> list[Any]:
    """Runs the body on so many peers, each on a thread, and gives what they return."""
    results: list[Any] = [None] * world
    errors: list[BaseException] = []

    def peer(number: int) -> None:
        try:
            with pccl.Communicator(address, name=f"peer-{number}") as comm:
                comm.connect()
                while comm.world_size < world:
                    comm.update_topology()
                results[number] = body(comm, number)
        except BaseException as error:  # noqa: BLE001, raised again below
            errors.append(error)

    threads = [threading.Thread(target=peer, args=[number], daemon=True) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a peer hangs"
    if errors:
        raise errors[0]
    return results


def test_without_a_device_cuda_is_unavailable_and_everything_else_works() -> None:
    code = "import pccl; print(pccl.cuda.is_available())"
    env = {"CUDA_VISIBLE_DEVICES": ""}
    out = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (out.returncode, out.stdout.strip()) == (0, "False"), out.stderr


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8"])
def test_all_peers_get_the_sum(master: str, dtype: str) -> None:
    kind = getattr(torch, dtype)

    def body(comm: pccl.Communicator, number: int) -> tuple[Any, Any]:
        data = (torch.arange(100_003, device="cuda") % 50 + number).to(kind)
        before, result = data.clone(), torch.zeros_like(data)
        info = comm.all_reduce(data, result, op=pccl.ReduceOp.SUM)
        assert info.world_size == 2 and torch.equal(data, before)
        comm.all_reduce(data, data, op=pccl.ReduceOp.SUM)
        return result.cpu(), data.cpu()

    want = ((torch.arange(100_003) % 50) * 2 + 1).to(kind)
    for result, in_place in peers(master, body):
        assert torch.equal(result, want) and torch.equal(in_place, want)


@needs_gpu
def test_work_that_was_queued_before_is_seen(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> Any:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            matrix = torch.full((4096, 4096), 1.0 / 4096, device="cuda")
            for _ in range(50):
                matrix = matrix @ matrix * 4096 / 4096
            data = torch.zeros(1_000_000, device="cuda")
            data += matrix.sum() * 0 + number + 1
            comm.all_reduce(data, data)
            # What is queued after the call sees its result.
            doubled = data * 2
        side.synchronize()
        return doubled.cpu()

    for result in peers(master, body):
        assert torch.equal(result, torch.full((1_000_000,), 6.0))


@needs_gpu
def test_several_tags_run_at_once(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> list[Any]:
        tensors = [torch.full((500_000,), float(tag + number), device="cuda") for tag in range(6)]
        tags = list(range(6)) if number == 0 else list(reversed(range(6)))
        handles = {
            t: comm.all_reduce_async(tensors[t], tensors[t], op=pccl.ReduceOp.AVG, tag=t) for t in tags
        }
        with pytest.raises(pccl.PCCLError, match="PENDING_ASYNC_OPS"):
            comm.update_topology()
        for handle in handles.values():
            is_success, status, info = handle.wait()
            assert is_success and info.world_size == 2, (status, handle.error)
        descriptors = [
            pccl.ReduceOpDescriptor.from_torch(t, t, pccl.ReduceDescriptor(count=t.numel(), tag=i))
            for i, t in enumerate(tensors)
        ]
        comm.all_reduce_multiple_with_retry(descriptors, max_in_flight=2 + number)
        return [t[::1000].cpu() for t in tensors]

    for tensors in peers(master, body):
        for tag, values in enumerate(tensors):
            assert torch.equal(values, torch.full((500,), 2 * (tag + 0.5)))


@needs_gpu
def test_state_on_the_gpu_and_in_main_memory_is_one_state(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> tuple[Any, ...]:
        # The same contents are the same state, wherever they lie.
        torch.manual_seed(7)
        same = torch.randn(1_000_003)
        if number == 0:
            same = same.cuda()
        other = torch.nn.Parameter(torch.full((300_000,), float(number), device="cuda", dtype=torch.bfloat16))
        tied = torch.full((10,), number, device="cuda")
        state = pccl.SharedState(
            [
                pccl.TensorInfo.from_torch(same, "same"),
                pccl.TensorInfo.from_torch(other, "other"),
                pccl.TensorInfo.from_torch(tied, "one"),
                pccl.TensorInfo.from_torch(tied, "two"),
            ]
        )
        assert state.infos[1].device_type is pccl.DeviceType.CUDA
        first = comm.sync_shared_state(state)
        state.push_revision()
        again = comm.sync_shared_state(state)
        assert again.rx_bytes == 0 and again.tx_bytes == 0
        return first, same.cpu(), other.detach().cpu(), tied.cpu()

    one, two = peers(master, body)
    assert {one[0].rx_bytes, two[0].rx_bytes} == {0, 300_000 * 2 + 2 * 80}
    for left, right in zip(one[1:], two[1:], strict=True):
        assert torch.equal(left, right)


@needs_gpu
def test_a_sync_sees_what_was_queued_on_another_stream(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> int:
        values = torch.full((1_000_000,), float(number), device="cuda")
        state = pccl.SharedState([pccl.TensorInfo.from_torch(values, "values")])
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            matrix = torch.full((4096, 4096), 1.0 / 4096, device="cuda")
            for _ in range(50):
                matrix = matrix @ matrix
            values.fill_(7.0)
            return comm.sync_shared_state(state).rx_bytes

    assert peers(master, body) == [0, 0]


@needs_gpu
def test_a_tensor_on_the_gpu_is_as_before_when_an_operation_fails(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> Any:
        data = torch.full((1000 + number,), 5.0, device="cuda")
        with pytest.raises(pccl.PCCLError):
            comm.all_reduce(data, data)
        return data.cpu()

    for number, data in enumerate(peers(master, body)):
        assert torch.equal(data, torch.full((1000 + number,), 5.0))


@needs_gpu
def test_tensors_of_two_devices_and_strided_ones_are_rejected(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> None:
        host, device = torch.zeros(8), torch.zeros(8, device="cuda")
        with pytest.raises(ValueError, match="same kind of device"):
            comm.all_reduce(host, device)
        with pytest.raises(ValueError, match="contiguous"):
            comm.all_reduce(device[::2], device[::2])

    peers(master, body)


@needs_gpu
def test_cupy_arrays_are_reduced(master: str) -> None:
    cupy = pytest.importorskip("cupy")

    def body(comm: pccl.Communicator, number: int) -> Any:
        data = cupy.full(1000, number + 1, dtype=cupy.float32)
        comm.all_reduce(data, data)
        return data.get()

    for result in peers(master, body):
        assert (result == 3.0).all()


@needs_gpu
def test_a_tensor_lives_until_its_operation_has_ended(master: str) -> None:
    def body(comm: pccl.Communicator, number: int) -> None:
        for _ in range(20):
            handle = comm.all_reduce_async(
                torch.ones(1_000_000, device="cuda"), torch.empty(1_000_000, device="cuda")
            )
            # What torch would have given the memory to.
            torch.full((1_000_000,), 9.0, device="cuda")
            assert handle.wait()[0]

    peers(master, body)
