"""Captures of CUDA graphs, as far as they need no GPU: what is refused, and what becomes a branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchcomms
from ranks import Ranks
from torchcomms import ReduceOp

CPU = torch.device("cpu")


def operate_in_a_capture(with_reconfigure: bool) -> list[str]:
    from torchcomms import _device

    comm = torchcomms.new_comm("ringfold", CPU, "c", timeout=20.0, enable_reconfigure=with_reconfigure)
    if with_reconfigure:
        comm.reconfigure(1, [comm.get_init_handle()])
    size, peer = comm.get_size(), (comm.get_rank() + 1) % comm.get_size()
    one, many, parts = torch.ones(2), torch.ones(2 * size), [torch.ones(2) for _ in range(size)]
    window = comm.new_window(torch.ones(2))
    batch = comm.batch_op_create()
    batch.send(one, comm.get_rank())
    batch.recv(torch.ones(2), comm.get_rank())
    operations: list[Callable[[bool], Any]] = [
        comm.barrier,
        lambda later: comm.all_reduce(one, ReduceOp.SUM, later),
        lambda later: comm.all_reduce(torch.ones(2).to_sparse(), ReduceOp.SUM, later),
        lambda later: comm.broadcast(one, 0, later),
        lambda later: comm.reduce(one, 0, ReduceOp.SUM, later),
        lambda later: comm.all_gather(parts, one, later),
        lambda later: comm.all_gather_v(parts, one, later),
        lambda later: comm.all_gather_single(many, one, later),
        lambda later: comm.reduce_scatter(one, parts, ReduceOp.SUM, later),
        lambda later: comm.reduce_scatter_v(one, parts, ReduceOp.SUM, later),
        lambda later: comm.reduce_scatter_single(one, many, ReduceOp.SUM, later),
        lambda later: comm.all_to_all(parts, parts, later),
        lambda later: comm.all_to_all_single(torch.ones(2 * size), many, later),
        lambda later: comm.all_to_all_v_single(torch.ones(2 * size), many, [2] * size, [2] * size, later),
        lambda later: comm.scatter(one, parts, 0, later),
        lambda later: comm.gather(parts, one, 0, later),
        lambda later: comm.gather_single(many, one, 0, later),
        batch.issue,
        lambda later: window.put(one, 0, 0, later),
        lambda later: window.get(one, 0, 0, later),
        lambda later: window.signal(0, later),
        lambda later: window.wait_signal(0, later),
    ]
    if size > 1:
        operations += [lambda later: comm.send(one, peer, later), lambda later: comm.recv(one, peer, later)]
    usual, _device.is_capturing = _device.is_capturing, lambda: True
    missed = []
    for number, operation in enumerate(operations):
        for later in (False, True):
            try:
                operation(later)
                missed.append(f"{number} {later}")
            except RuntimeError as error:
                if "unsupported in a CUDA graph" not in str(error):
                    missed.append(f"{number} {later} {error}")
            if number == 17:
                batch.send(one, comm.get_rank())
                batch.recv(torch.ones(2), comm.get_rank())
    _device.is_capturing = usual
    comm.barrier(False)
    window.tensor_deregister()
    comm.finalize()
    return missed


@pytest.mark.parametrize("world, with_reconfigure", [(2, False), (1, True)])
def test_a_capture_refuses_what_the_host_would_run(ranks: Ranks, world: int, with_reconfigure: bool) -> None:
    assert ranks.run(world, operate_in_a_capture, with_reconfigure) == [[]] * world


class Call:
    """A call of the native module."""

    def __init__(self, capture: int | None) -> None:
        self.capture = capture
        self.ordered: list[int] = []

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None) -> bool:
        return True

    def order_after(self, stream: int) -> None:
        self.ordered.append(stream)


class Stream:
    cuda_stream = 9

    def __init__(self, *_: Any, **settings: Any) -> None:
        self.settings = settings


def test_captured_transfers_are_branches_that_keep_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchcomms._device import _COLLECTIVES, Device

    device = Device(None, torch.device("cuda", 0), 0, 2, False)  # type: ignore[arg-type]
    streams: list[tuple[int, int | None]] = []
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 5, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: True, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)

    def queued(call: Call | None) -> Any:
        def queue(stream: int, own: int | None) -> Any:
            streams.append((stream, own))
            return call

        return queue

    assert device.queue(queued(None), _COLLECTIVES, torch.ones(1), True).is_completed()
    first, second, third = Call(1), Call(1), Call(2)
    waited = device.queue(queued(first), ("send", 1), "a", True)
    device.queue(queued(second), ("recv", 1), "b", True)
    assert streams == [(5, None), (5, 5), (5, 5)]
    assert list(device._captured.values()) == ["a", "b"]
    waited.wait()
    assert first.ordered == [5] and list(device._captured.values()) == ["b"]
    device.queue(queued(third), ("send", 1), "c", True)
    assert list(device._captured.values()) == ["c"]

    # Outside of captures each priority has a stream of its own.
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
    for is_urgent in (None, True, False):
        device.queue(queued(Call(None)), ("send", 1), "d", True, is_urgent)
    assert {key: one.settings["priority"] for key, one in device._streams.items()} == {
        ("send", 1, False): 0,
        ("send", 1, True): -1,
    }
    device._group = type("Group", (), {"close": lambda _: None})()  # type: ignore[assignment]
    device.close()


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_a_factor_on_the_device_gives_the_same_bits_as_a_number(dtype: torch.dtype) -> None:
    from torchcomms._task import _scaled

    tensor = (torch.arange(1, 40).double() / (1 if not dtype.is_floating_point else 7)).to(dtype)
    for factor in (3.0, 0.3, 2.5, 1.0):
        for kind in (torch.float64, torch.float32):
            number = torch.tensor(factor, dtype=kind)
            assert _scaled(tensor, number).equal(_scaled(tensor, float(number))), (dtype, factor, kind)
    whole = torch.tensor(2)
    assert _scaled(tensor, whole).equal(_scaled(tensor, 2.0))
    assert _scaled(tensor, whole).dtype == dtype
