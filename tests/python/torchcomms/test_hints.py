"""Hints: of communicators, and of single operations."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torchcomms
from ranks import Ranks
from torchcomms import BatchP2POptions, ReduceOp, TorchComm, TorchCommWinAccessType, _hints

CPU = torch.device("cpu")
TAG, MEDIA = "ringfold::tag", "ringfold::media"
PRIORITY = "torchcomm::ncclx::high_priority_stream"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchComm]:
    """A communicator of one rank, in a process that has not warned yet."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "0" if name == "RANK" else "1")
    monkeypatch.setattr(_hints, "_warned", set())
    comm = torchcomms.new_comm("ringfold", CPU, "alone")
    yield comm
    comm.finalize()


def warned(call: Callable[[], object]) -> list[str]:
    """The warnings of a call; each names this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(os.path.basename(one.filename) == os.path.basename(__file__) for one in caught)
    return [str(one.message) for one in caught]


def reduce(comm: TorchComm, hints: dict[str, str]) -> Callable[[], object]:
    return lambda: comm.all_reduce(torch.ones(1), ReduceOp.SUM, False, hints)


def test_a_hint_without_effect_on_an_operation_is_named_once(alone: TorchComm) -> None:
    assert warned(reduce(alone, {"other::thing": "1"})) == ["unknown hint 'other::thing': it has no effect"]
    assert warned(reduce(alone, {"other::thing": "2"})) == []
    (text,) = warned(reduce(alone, {TAG: "3"}))
    assert text == f"hint '{TAG}' has no effect on all_reduce: only sends and receives have tags"
    (text,) = warned(reduce(alone, {MEDIA: "tcp"}))
    assert repr(MEDIA) in text and "set_hints()" in text
    assert warned(reduce(alone, {MEDIA: "tcp"})) == [] == warned(reduce(alone, {PRIORITY: "true"}))
    with pytest.raises(RuntimeError, match="perhaps"):
        alone.barrier(False, {PRIORITY: "perhaps"})


def test_hints_of_windows_and_batches_are_checked(alone: TorchComm) -> None:
    window = alone.new_window(torch.zeros(4))
    calls = {
        "put": lambda hints: window.put(torch.ones(1), 0, 0, False, hints),
        "signal": lambda hints: window.signal(0, False, hints),
        "wait_signal": lambda hints: window.wait_signal(0, False, hints),
    }
    for number, (name, call) in enumerate(calls.items()):
        (text,) = warned(lambda call=call, number=number: call({f"other::{number}": "1"}))
        assert f"other::{number}" in text, name
        (text,) = warned(lambda call=call: call({TAG: "1"}))
        assert TAG in text and name in text
    window.tensor_deregister()


def test_unknown_hints_of_ringfold_are_errors(alone: TorchComm) -> None:
    wrong = {"ringfold::meda": "tcp"}
    calls: list[Callable[[], Any]] = [
        lambda: torchcomms.new_comm("ringfold", CPU, "w", hints=wrong),
        lambda: alone.set_hints(wrong),
        lambda: alone.split([0], hints=wrong),
        lambda: alone.barrier(False, wrong),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="unknown hint 'ringfold::meda': hints of ringfold are"):
            call()
    assert alone.get_options().hints is None


@pytest.mark.parametrize("name, value", [(MEDIA, "pigeon"), (TAG, "-1"), (TAG, "x"), (PRIORITY, "perhaps")])
def test_invalid_values_are_errors(alone: TorchComm, name: str, value: str) -> None:
    for call in (
        lambda: torchcomms.new_comm("ringfold", CPU, "w", hints={name: value}),
        lambda: alone.set_hints({name: value}),
        lambda: alone.split([0], hints={name: value}),
    ):
        with pytest.raises(RuntimeError, match=value):
            call()


def test_the_stream_priority_can_be_changed(alone: TorchComm) -> None:
    child = alone.split([0], hints={PRIORITY: "true"})
    assert child is not None
    assert child.get_options().is_high_priority_stream and child.get_options().hints == {PRIORITY: "true"}
    assert not alone.get_options().is_high_priority_stream
    alone.set_hints({PRIORITY: "1"})
    assert alone.get_options().is_high_priority_stream and alone._backend._is_urgent
    alone.set_hints({PRIORITY: "0"})
    assert not alone._backend._is_urgent
    child.finalize()


class Quiet(torchcomms.TorchCommBackend):
    def init(self, *_: Any) -> None:
        return

    def finalize(self) -> None:
        return

    def barrier(self, async_op: bool) -> None:
        return


def test_backends_in_python_get_no_hints_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hints, "_warned", set())
    torchcomms.register_backend("quiet_backend", Quiet)
    comm = torchcomms.new_comm("quiet_backend", CPU, "q")
    (text,) = warned(lambda: comm.barrier(False, {"a": "b"}))
    assert "'a' has no effect: the backend" in text
    assert warned(lambda: comm.barrier(False, {"a": "b"})) == []
    (text,) = warned(lambda: comm.set_hints({MEDIA: "tcp"}))
    assert MEDIA in text
    comm.finalize()


# --- effects -------------------------------------------------------------------------------------------------------


def made(**options: Any) -> TorchComm:
    return torchcomms.new_comm("ringfold", CPU, "hints", timeout=30.0, **options)


def tags(where: str) -> list[float]:
    comm = made(hints={TAG: "7"} if where == "new_comm" else None)
    if where == "set_hints":
        comm.set_hints({TAG: "7"})
    plain, tagged = torch.zeros(2), torch.zeros(2)
    if comm.get_rank() == 0:
        # The one without a hint has tag 7.
        comm.send(torch.full((2,), 7.0), 1, True, None if where != "batch" else {TAG: "7"})
        comm.send(torch.full((2,), 5.0), 1, True, {TAG: "0"})
    elif where == "batch":
        batch = comm.batch_op_create()
        batch.recv(tagged, 0)
        batch.issue(False, BatchP2POptions(hints={TAG: "7"}))
        comm.recv(plain, 0, False)
    else:
        comm.recv(plain, 0, False, {TAG: "0"})
        comm.recv(tagged, 0, False)
    comm.barrier(False)
    comm.finalize()
    return [plain[0].item(), tagged[0].item()]


@pytest.mark.parametrize("where", ["new_comm", "set_hints", "batch"])
def test_tags_of_communicators_and_batches_apply_to_transfers(ranks: Ranks, where: str) -> None:
    assert ranks.run(2, tags, where)[1] == [5.0, 7.0]


def transports() -> list[Any]:
    comm = made()
    peer = 1 - comm.get_rank()
    access = []

    def look(one: TorchComm) -> None:
        window = one.new_window(torch.zeros(4))
        access.append(window.get_attr(peer).access_type is TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED)
        window.tensor_deregister()

    child = comm.split([0, 1], name="a", hints={MEDIA: "tcp"})
    assert child is not None
    shared = [comm._backend._group.is_shared, child._backend._group.is_shared]
    look(comm)
    look(child)
    comm.set_hints({MEDIA: "tcp"})
    look(comm)
    grandchild = comm.split([0, 1], name="b")
    assert grandchild is not None
    shared.append(grandchild._backend._group.is_shared)
    for one in (grandchild, child, comm):
        one.finalize()
    return [shared, access]


def test_the_transport_applies_to_splits_and_later_windows(ranks: Ranks) -> None:
    assert ranks.run(2, transports) == [[[True, False, False], [True, False, False]]] * 2


def reconfigured() -> list[bool]:
    comm = made(enable_reconfigure=True)
    handle = comm.get_init_handle()
    exchange = made()
    everyone: list[Any] = [None, None]
    torchcomms.objcol.all_gather_object(exchange, everyone, handle)
    shared = []
    for uuid, media in enumerate(("auto", "tcp")):
        comm.reconfigure(uuid, list(everyone), hints={MEDIA: media}).wait()
        shared.append(comm._backend._group.is_shared)
    with pytest.raises(RuntimeError, match="unknown hint"):
        comm.reconfigure(5, list(everyone), hints={"ringfold::x": "y"})
    comm.finalize()
    exchange.finalize()
    return shared


def test_the_transport_applies_to_reconfigurations(ranks: Ranks) -> None:
    assert ranks.run(2, reconfigured) == [[True, False]] * 2


def test_certificates_are_complete_or_missing() -> None:
    names = [f"ringfold::tls_{part}" for part in ("ca", "cert", "key")]
    assert _hints.tls_of(None) is None
    assert _hints.tls_of({name: name[-2:] for name in names}) == ["ca", "rt", "ey"]
    with pytest.raises(RuntimeError, match="incomplete certificates: the hints ringfold::tls_ca"):
        _hints.check_hints({names[0]: "ca.pem"})


def test_settings_are_hints(alone: TorchComm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting of the timeout has an effect, before the variable of torchcomms and after an argument."""
    name = "ringfold::operation_timeout"
    timeout = lambda **options: torchcomms.new_comm("ringfold", CPU, "s", **options).get_options().timeout  # noqa: E731
    assert timeout(hints={name: "90s", "ringfold::stall_after": "10s"}).total_seconds() == 90
    assert timeout(hints={name: "90s"}, timeout=7.0).total_seconds() == 7
    monkeypatch.setenv("RINGFOLD_OPERATION_TIMEOUT", "2min")
    assert timeout().total_seconds() == 120
    monkeypatch.setenv("TORCHCOMM_TIMEOUT_SECONDS", "8")
    assert timeout().total_seconds() == 8 and timeout(hints={name: "90s"}).total_seconds() == 90
    for hints, why in [
        ({name: "soon"}, "must be a time"),
        ({"ringfold::heartbeat": "1s"}, "unknown hint"),
        ({"ringfold::bootstrap": "a:1"}, "unknown hint"),
    ]:
        with pytest.raises(RuntimeError, match=why):
            timeout(hints=hints)
    child = alone.split([0], "child", hints={"ringfold::stall_after": "20s"})
    child.finalize()
    monkeypatch.setenv("RINGFOLD_STALL_AFTER", "never")
    with pytest.raises(RuntimeError, match='invalid RINGFOLD_STALL_AFTER "never"'):
        timeout()
