"""Collectives of objects."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torchcomms  # noqa: E402
from ranks import Ranks  # noqa: E402
from torchcomms import objcol  # noqa: E402


class Custom:
    """A class that weights_only rejects."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


def _objects(rank: int) -> list[Any]:
    """Objects of other sizes on each rank."""
    return [{"rank": rank, "list": [1.5] * rank}, "x" * (100 * rank + 1), torch.arange(rank), None, rank]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_objects_of_any_size_reach_the_ranks_they_are_for(ranks: Ranks, world: int) -> None:
    assert ranks.run(world, _all) == [None] * world


def _all() -> None:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="objects")
    _check(comm)
    comm.finalize()


def _check(comm: torchcomms.TorchComm) -> None:
    rank, size = comm.get_rank(), comm.get_size()
    for number in range(len(_objects(0))):
        every: list[Any] = [None] * size
        objcol.all_gather_object(comm, every, _objects(rank)[number], timeout=30)
        assert all(_equal(one, _objects(r)[number]) for r, one in enumerate(every))

    for root in range(size):
        places: list[Any] | None = ["?"] * size if rank == root else None
        objcol.gather_object(comm, _objects(rank)[0], root, places)
        if places is not None:
            assert places == [_objects(r)[0] for r in range(size)]

        objects = _objects(7) if rank == root else [None] * 5
        objcol.broadcast_object_list(comm, objects, root)
        assert all(_equal(one, other) for one, other in zip(objects, _objects(7), strict=True))

        given = [_objects(r)[1] for r in range(size)] if rank == root else None
        output = [None, "untouched"]
        objcol.scatter_object_list(comm, root, output, given)
        assert output == [_objects(rank)[1], "untouched"]

    for src in range(size - 1):
        received: list[Any] = [None] * 5
        if rank == src:
            objcol.send_object_list(comm, _objects(3), src + 1)
        elif rank == src + 1:
            objcol.recv_object_list(comm, received, src)
            assert all(_equal(one, other) for one, other in zip(received, _objects(3), strict=True))


def test_code_of_the_sender_is_not_run_unless_asked_for(ranks: Ranks) -> None:
    assert ranks.run(2, _custom) == [("refused", [Custom(0), Custom(1)])] * 2


def test_with_pickle_all_objects_can_be_sent(ranks: Ranks) -> None:
    got = ranks.run(2, _custom, env={"TORCHCOMMS_SERIALIZATION": "pickle"})
    assert got == [([Custom(0), Custom(1)], [Custom(0), Custom(1)])] * 2
    assert ranks.run(2, _all, env={"TORCHCOMMS_SERIALIZATION": "pickle"}) == [None] * 2


def _custom() -> tuple[Any, list[Any]]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="objects")
    mine = Custom(comm.get_rank())
    strict: Any = [None] * 2
    try:
        objcol.all_gather_object(comm, strict, mine)
    except Exception as error:
        assert "weights_only" in str(error).lower(), error
        strict = "refused"
    every: list[Any] = [None] * 2
    objcol.all_gather_object(comm, every, mine, weights_only=False)
    comm.finalize()
    return strict, every


def test_invalid_lists_are_rejected_before_anything_is_sent() -> None:
    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="alone")
    with pytest.raises(ValueError, match="object_list"):
        objcol.all_gather_object(comm, [], 1)
    with pytest.raises(ValueError, match="root"):
        objcol.gather_object(comm, 1, 0)
    with pytest.raises(ValueError, match="empty"):
        objcol.scatter_object_list(comm, 0, [], [1])
    with pytest.raises(ValueError, match="root"):
        objcol.scatter_object_list(comm, 0, [None])
    for call in (objcol.broadcast_object_list, objcol.send_object_list, objcol.recv_object_list):
        with pytest.raises(ValueError, match="empty"):
            call(comm, [], 0)
    with pytest.raises(RuntimeError, match="0 to 0"):
        objcol.broadcast_object_list(comm, [1], 3)
    comm.finalize()


def test_an_unknown_serializer_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="alone")
    monkeypatch.setenv("TORCHCOMMS_SERIALIZATION", "json")
    with pytest.raises(ValueError, match="TORCHCOMMS_SERIALIZATION.*json"):
        objcol.all_gather_object(comm, [None], 1)
    comm.finalize()


def test_timeouts_name_the_missing_rank(ranks: Ranks) -> None:
    ranks.run(2, _late)


def _late() -> None:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="objects")
    if comm.get_rank() == 0:
        with pytest.raises(RuntimeError, match="rank 1"):
            objcol.broadcast_object_list(comm, [None], 1, timeout=0.2)
