"""The rendezvous of ranks, and messages between them without connections."""

from __future__ import annotations

import gc
import pickle
import threading
import time
from array import array

import mscclpp
import pytest
from mscclpp import Error, ErrorCode, TcpBootstrap, UniqueId
from ports import free_port
from world import DEADLINE, World, await_blocked, await_reached, meet, rank, reach, size

PROMPT = 5.0


def gather_and_pass_on() -> tuple[list[bytes], bytes, list[int], int]:
    bootstrap = meet()
    n, me = bootstrap.get_n_ranks(), bootstrap.get_rank()
    said = bootstrap.all_gather(b"x" * me)
    numbers = array("i", [me if i == me else -1 for i in range(n)])
    bootstrap.all_gather(numbers)
    bootstrap.send(bytes([me]) * 3, (me + 1) % n, 7)
    got = bytearray(3)
    bootstrap.recv(got, (me - 1) % n, 7)
    bootstrap.barrier()
    return said, bytes(got), list(numbers), bootstrap.get_n_ranks_per_node()


@pytest.mark.parametrize("n", [1, 2, 8])
def test_ranks_that_meet_by_a_unique_id_gather_and_pass_on(world: World, n: int) -> None:
    for me, (said, got, numbers, near) in enumerate(world.run(n, gather_and_pass_on)):
        assert said == [b"x" * i for i in range(n)]
        assert got == bytes([(me - 1) % n]) * 3
        assert numbers == list(range(n))
        assert near == n


def meet_at(where: str, rank_0_is_late: bool = False) -> list[bytes]:
    if rank() == 0 and rank_0_is_late:
        await_blocked("tries", 1, 2)
    reach("tries")
    bootstrap = TcpBootstrap.create(rank(), size())
    bootstrap.initialize(where, timeout_sec=DEADLINE)
    return list(bootstrap.all_gather(bytes([rank()])))


@pytest.mark.parametrize("host", ["lo:127.0.0.1", "127.0.0.1", "localhost", "lo:localhost"])
def test_ranks_meet_at_an_address(world: World, host: str) -> None:
    assert world.run(2, meet_at, f"{host}:{free_port()}") == [[b"\0", b"\1"]] * 2


def test_ranks_try_until_rank_0_listens(world: World) -> None:
    assert world.run(3, meet_at, f"127.0.0.1:{free_port()}", True) == [[b"\0", b"\1", b"\2"]] * 3


def meet_again_and_again(where: str) -> int:
    kept = []
    for _ in range(5):
        bootstrap = TcpBootstrap.create(rank(), size())
        bootstrap.initialize(where, timeout_sec=DEADLINE)
        bootstrap.barrier()
        kept.append(bootstrap)
    return len(kept)


def test_a_port_can_be_used_again_at_once(world: World) -> None:
    at = f"lo:127.0.0.1:{free_port()}"
    assert world.run(2, meet_again_and_again, at) == [5, 5]
    assert world.run(2, meet_again_and_again, at) == [5, 5]


def send_and_end(nbytes: int) -> bytes:
    bootstrap = meet()
    if rank() == 0:
        began = time.monotonic()
        for tag in range(3):
            bootstrap.send(bytes([tag]) * nbytes, 1, tag)
        assert time.monotonic() - began < PROMPT
        reach("sent")
        return b""
    await_reached("sent", 0)
    got = b""
    # In another order than they were sent.
    for tag in (2, 0, 1):
        data = bytearray(nbytes)
        bootstrap.recv(data, 0, tag)
        got += data[:1] + data[-1:]
    return got


@pytest.mark.parametrize("nbytes", [4096, 60_000])
def test_what_was_sent_arrives_though_its_sender_has_ended(world: World, nbytes: int) -> None:
    assert world.run(2, send_and_end, nbytes, exits_fully=True)[1] == b"\2\2\0\0\1\1"


def swap_a_lot() -> int:
    bootstrap = meet()
    mine, theirs = bytearray([rank()]) * (8 << 20), bytearray(8 << 20)
    receiver = threading.Thread(target=bootstrap.recv, args=(theirs, 1 - rank(), 0))
    receiver.start()
    bootstrap.send(mine, 1 - rank(), 0)
    receiver.join(DEADLINE)
    return theirs[0] * 1000 + theirs[-1]


def test_large_arrays_are_sent_as_well(world: World) -> None:
    assert world.run(2, swap_a_lot) == [1001, 0]


def by_address() -> list[int]:
    bootstrap = meet()
    data = array("q", [rank() + 5, 0])
    address, _ = data.buffer_info()
    bootstrap.send(address, 8, 1 - rank(), 3)
    bootstrap.recv(address + 8, 8, 1 - rank(), 3)
    whole = array("q", [rank() if i == rank() else 0 for i in range(2)])
    bootstrap.all_gather(whole.buffer_info()[0], 8)
    return [*data, *whole]


def test_memory_can_be_given_by_its_address(world: World) -> None:
    assert world.run(2, by_address) == [[5, 6, 0, 1], [6, 5, 0, 1]]


def test_a_unique_id_pickles_compares_and_keeps_its_secret() -> None:
    bootstrap = TcpBootstrap.create(0, 2)
    one, other = bootstrap.create_unique_id(), bootstrap.create_unique_id()
    again = pickle.loads(pickle.dumps(one))
    assert isinstance(again, UniqueId) and again == one != other and hash(again) == hash(one)
    assert bytes(one).decode().split(":")[4] not in repr(one)


def test_a_rendezvous_times_out_and_names_the_missing_rank() -> None:
    bootstrap = TcpBootstrap.create(0, 3)
    began = time.monotonic()
    with pytest.raises(Error, match="rank") as caught:
        bootstrap.initialize(bootstrap.create_unique_id(), timeout_sec=1)
    assert 0.9 < time.monotonic() - began < PROMPT
    assert caught.value.code is ErrorCode.Timeout and caught.value.args[0] == ErrorCode.Timeout
    began = time.monotonic()
    with pytest.raises(Error, match="timed out connecting to rank 0"):
        TcpBootstrap.create(1, 3).initialize(f"127.0.0.1:{free_port()}", timeout_sec=1)
    assert 0.9 < time.monotonic() - began < PROMPT


def test_a_rendezvous_can_be_repeated_after_a_timeout() -> None:
    bootstrap = TcpBootstrap.create(0, 2)
    made = bootstrap.create_unique_id()
    late = TcpBootstrap.create(1, 2)
    with pytest.raises(Error, match="no reply"):
        late.initialize(made, 0.3)
    with pytest.raises(Error, match="waiting for rank 1"):
        bootstrap.initialize(made, 0.3)
    other = threading.Thread(target=late.initialize, args=(made, DEADLINE))
    other.start()
    bootstrap.initialize(made, timeout_sec=DEADLINE)
    other.join(DEADLINE)
    assert bootstrap.get_n_ranks_per_node() == late.get_n_ranks_per_node() == 2


def test_a_bootstrap_that_never_met_anyone_ends_at_once() -> None:
    began = time.monotonic()
    for at in range(10):
        bootstrap = TcpBootstrap.create(at % 2, 2)
        bootstrap.create_unique_id()
        del bootstrap
    gc.collect()
    assert time.monotonic() - began < PROMPT


def test_invalid_arguments_are_rejected_with_the_reason() -> None:
    with pytest.raises(Error, match="rank 2 is not in a world of 2"):
        TcpBootstrap.create(2, 2)
    bootstrap = TcpBootstrap.create(0, 1)
    with pytest.raises(Error, match="not initialised"):
        bootstrap.barrier()
    for where in ("", "nonsense", "127.0.0.1", "lo:127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", "a:b:c:d"):
        with pytest.raises(Error, match="invalid address"):
            bootstrap.initialize(where)
    with pytest.raises(Error, match="no network interface 'eth77'"):
        bootstrap.initialize("eth77:127.0.0.1:5000")
    with pytest.raises(Error, match="invalid unique id"):
        bootstrap.initialize(b"\xff something else")
    made_by_1 = TcpBootstrap.create(1, 2).create_unique_id()
    with pytest.raises(Error, match="made by rank 1"):
        TcpBootstrap.create(0, 2).initialize(made_by_1)
    bootstrap.initialize(bootstrap.create_unique_id())
    with pytest.raises(Error, match="initialised already"):
        bootstrap.initialize("127.0.0.1:5000")
    with pytest.raises(Error, match="tag -1 is out of range"):
        bootstrap.send(b"x", 0, -1)
    with pytest.raises(Error, match="read-only"):
        bootstrap.recv(b"x", 0, 0)
    assert bootstrap.all_gather(b"alone") == [b"alone"]
    assert issubclass(Error, mscclpp.BaseError)


def test_a_rank_may_send_to_itself() -> None:
    bootstrap = TcpBootstrap.create(0, 1)
    bootstrap.initialize(bootstrap.create_unique_id())
    bootstrap.send(b"one", 0, 4)
    bootstrap.send(b"two", 0, 4)
    for expected in (b"one", b"two"):
        got = bytearray(3)
        bootstrap.recv(got, 0, 4)
        assert got == expected


def test_threads_of_one_process_may_be_the_ranks() -> None:
    ranks = [TcpBootstrap.create(each, 4) for each in range(4)]
    made = ranks[0].create_unique_id()
    got: dict[int, list[bytes]] = {}

    def be(each: TcpBootstrap) -> None:
        each.initialize(made, timeout_sec=DEADLINE)
        got[each.get_rank()] = each.all_gather(bytes([each.get_rank()]))

    threads = [threading.Thread(target=be, args=(each,)) for each in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert got == {each: [b"\0", b"\1", b"\2", b"\3"] for each in range(4)}
