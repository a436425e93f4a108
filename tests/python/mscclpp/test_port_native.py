"""Ports, registered memory and connections of ``ringfold._native``, between real processes and without a GPU."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from ringfold import _native
from ringfold._error import PortError
from world import DEADLINE, World, meet, rank, size

ETHERNET, SHARED_MEMORY, IB3 = 2, 4, 8 << 3
TRANSPORTS = (ETHERNET, SHARED_MEMORY)
# Far below the deadlines, far above the expected time.
PROMPT = 10.0


class Memory:
    """Memory of the host, in a file that others can map, or not."""

    def __init__(self, nbytes: int, shared: bool = False) -> None:
        self.file = None
        fd = -1
        if shared:
            fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.file = (fd, 0)
        self.map = mmap.mmap(fd, nbytes)
        self.nbytes = nbytes
        self._first = ctypes.c_ubyte.from_buffer(self.map)
        self.address = ctypes.addressof(self._first)

    def register(self, port: _native.Port, transports: int = ETHERNET | SHARED_MEMORY) -> _native.PortMemory:
        return port.register(self.address, self.nbytes, transports, self.file, self)

    def word(self, offset: int) -> int:
        return ctypes.c_uint64.from_address(self.address + offset).value

    def await_word(self, offset: int, value: int, deadline: float = DEADLINE) -> None:
        until = time.monotonic() + deadline
        while self.word(offset) != value:
            assert time.monotonic() < until, f"word {offset} is {self.word(offset)}, not {value}"
            time.sleep(0.0005)


def tell(name: str, record: bytes) -> None:
    """Leaves something for the other ranks."""
    path = Path(os.environ["WORLD_FOLDER"]) / f"{name}-of{rank()}"
    path.with_suffix(".new").write_bytes(record)
    path.with_suffix(".new").rename(path)


def hear(name: str, of: int) -> bytes:
    """What another rank has left."""
    path = Path(os.environ["WORLD_FOLDER"]) / f"{name}-of{of}"
    until = time.monotonic() + DEADLINE
    while not path.exists():
        assert time.monotonic() < until, f"rank {of} has left no {name}"
        time.sleep(0.001)
    return path.read_bytes()


def connected(transport: int, name: str = "offer") -> tuple[_native.Port, dict[int, _native.PortConnection]]:
    """A port, and its connections with all others."""
    port = _native.Port(f"rank {rank()}", "127.0.0.1")
    connections = {}
    others = [other for other in range(size()) if other != rank()]
    offers = {other: port.offer(transport) for other in others}
    for other, offer in offers.items():
        tell(f"{name}-to{other}", offer.record)
    for other, offer in offers.items():
        connections[other] = port.connect(offer, hear(f"{name}-to{rank()}", other), other, DEADLINE)
        assert (connections[other].peer, connections[other].transport) == (other, transport)
    return port, connections


def exchanged(port: _native.Port, memory: Memory, of: int, name: str = "memory") -> _native.PortMemory:
    """Registers memory for the life of the process. Returns the other rank's memory."""
    kept.append(memory.register(port))
    tell(name, kept[-1].serialize())
    return port.remote(hear(name, of))


kept: list[_native.PortMemory] = []


def pattern(nbytes: int, seed: int) -> bytes:
    return bytes((at * 7 + seed * 13) % 251 for at in range(nbytes))


# --- writes and words --------------------------------------------------------------------------------------------------


def write_and_signal(transport: int, shared: bool) -> bool:
    port, connections = connected(transport)
    connection, other = connections[1 - rank()], 1 - rank()
    nbytes = 300_000
    target, bell, source = Memory(nbytes, shared), Memory(64, shared), Memory(nbytes)
    there = exchanged(port, target, other, "target")
    bell_there = exchanged(port, bell, other, "bell")
    mine = source.register(port)
    assert there.nbytes == nbytes and there.transports == ETHERNET | SHARED_MEMORY and not there.is_device
    for turn in range(1, 6):
        source.map[:] = pattern(nbytes, turn + rank())
        connection.write(there, 100, mine, 7, nbytes - 107)
        connection.update(bell_there, 8, turn)
        bell.await_word(8, turn)
        assert target.map[100 : nbytes - 7] == pattern(nbytes, turn + other)[7 : nbytes - 100]
        assert target.map[:100] == bytes(100) and target.map[-7:] == bytes(7)
        connection.flush(DEADLINE)
        connection.update(bell_there, 16, turn)
        bell.await_word(16, turn)
    reached = there.address != 0
    # The memory of both must live until both are done.
    tell("done", b"")
    hear("done", other)
    return reached


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("shared", [False, True])
def test_what_two_processes_write_arrives_and_words_come_behind_it(
    world: World, transport: int, shared: bool
) -> None:
    # Memory that lies in a file is mapped, other memory is reached over TCP.
    assert world.run(2, write_and_signal, transport, shared) == [shared, shared]


def test_where_memory_is_not_to_be_shared_it_is_reached_over_tcp(world: World) -> None:
    env = {"RINGFOLD_SHARED_MEMORY": "0"}
    assert world.start(2, write_and_signal, SHARED_MEMORY, True, env=env).results() == [False, False]


def write_here_and_there() -> None:
    port, connections = connected(SHARED_MEMORY)
    connection, other = connections[1 - rank()], 1 - rank()
    mapped, private, bell = Memory(4096, shared=True), Memory(4096), Memory(64, shared=True)
    into_mapped = exchanged(port, mapped, other, "mapped")
    into_private = exchanged(port, private, other, "private")
    bell_there = exchanged(port, bell, other, "bell")
    source = Memory(4096)
    mine = source.register(port)
    for turn in range(1, 200):
        source.map[:8] = turn.to_bytes(8, "little")
        connection.write(into_mapped, 0, mine, 0, 4096)
        connection.write(into_private, 0, mine, 0, 4096)
        connection.write(into_mapped, 512, mine, 0, 8)
        connection.update(bell_there, 0, turn)
        bell.await_word(0, turn)
        assert (mapped.word(0), private.word(0), mapped.word(512)) == (turn, turn, turn)
        # The source is changed after both have received it.
        connection.update(bell_there, 8, turn)
        bell.await_word(8, turn)
        connection.flush(DEADLINE)
    tell("done", b"")
    hear("done", other)


def test_unmappable_memory_keeps_the_order_with_mapped_memory(world: World) -> None:
    world.run(2, write_here_and_there)


def write_and_flush(transport: int) -> None:
    port, connections = connected(transport)
    target = Memory(1 << 20, shared=True)
    there = exchanged(port, target, 1 - rank())
    if rank() == 1:
        hear("flushed", 0)
        # No call was made here meanwhile.
        assert target.word(0) == 11 and target.map[-8:] == pattern(1 << 20, 3)[-8:]
        tell("seen", b"")
        return
    source = Memory(1 << 20)
    source.map[:] = pattern(1 << 20, 3)
    mine = source.register(port)
    connections[1].write(there, 0, mine, 0, 1 << 20)
    word = ctypes.c_uint64(5)
    connections[1].update_and_sync(there, 0, ctypes.addressof(word), 11)
    assert word.value == 11
    connections[1].flush(DEADLINE)
    tell("flushed", b"")
    hear("seen", 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_flushed_is_there_without_a_call_of_the_other_side(world: World, transport: int) -> None:
    world.run(2, write_and_flush, transport)


def write_by_threads(transport: int) -> None:
    port, connections = connected(transport)
    target = Memory(1 << 16, shared=True)
    there = exchanged(port, target, 1 - rank())
    source = Memory(64)
    mine = source.register(port)

    def work(number: int) -> None:
        for turn in range(1, 101):
            connections[1 - rank()].write(there, 4096 * number + 8, mine, 0, 64)
            connections[1 - rank()].update(there, 4096 * number, turn)
            if turn % 10 == 0:
                connections[1 - rank()].flush(DEADLINE)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    for number in range(8):
        target.await_word(4096 * number, 100)
    tell("done", b"")
    hear("done", 1 - rank())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_any_thread_may_write(world: World, transport: int) -> None:
    world.run(2, write_by_threads, transport)


def connect_first(transport: int) -> None:
    # Rank 1 is connected before rank 0 calls connect: an offer is enough.
    port = _native.Port(f"rank {rank()}", "127.0.0.1")
    offer = port.offer(transport)
    tell("offer", offer.record)
    target = Memory(4096, shared=True)
    there = exchanged(port, target, 1 - rank())
    if rank() == 0:
        hear("connected", 1)
        target.await_word(0, 9)
    connection = port.connect(offer, hear("offer", 1 - rank()), 1 - rank(), DEADLINE)
    if rank() == 1:
        connection.update(there, 0, 9)
        connection.flush(DEADLINE)
        tell("connected", b"")
    tell("done", b"")
    hear("done", 1 - rank())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_with_an_offer_is_connected_before_it_calls_connect(world: World, transport: int) -> None:
    world.run(2, connect_first, transport)


# --- ends --------------------------------------------------------------------------------------------------------------


def wait_for_the_dead(transport: int) -> tuple[str, str, float]:
    port, connections = connected(transport)
    print("ready", flush=True)
    hear("killed", 0)
    begun = time.monotonic()
    while True:
        try:
            for connection in connections.values():
                connection.flush(DEADLINE)
        except PortError as error:
            # Kernels and proxies look at the port, not at the connection.
            while port.failure() is None:
                assert time.monotonic() - begun < PROMPT
            return error.kind, str(error), time.monotonic() - begun
        assert time.monotonic() - begun < PROMPT
        time.sleep(0.001)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_rank_is_named_at_once_by_all(world: World, transport: int) -> None:
    running = world.start(3, wait_for_the_dead, transport)
    for child in running.children:
        child.wait_for("ready", DEADLINE)
    os.kill(running.children[0].pid, signal.SIGKILL)
    folder = running.outcomes[0].parent
    (folder / "killed-of0").write_bytes(b"")
    running.children, running.outcomes = running.children[1:], running.outcomes[1:]
    for kind, words, took in running.results():
        assert kind in ("lost", "aborted") and "rank 0" in words, words
        assert took < PROMPT


def wait_for_the_stopped() -> None:
    port, connections = connected(ETHERNET)
    target = Memory(64 << 20)
    there = exchanged(port, target, 1 - rank())
    source = Memory(64 << 20)
    mine = source.register(port)
    print("ready", flush=True)
    if rank() == 1:
        target.await_word(0, 3)
        tell("done", b"")
        return
    hear("stopped", 1)
    connections[1].write(there, 0, mine, 0, 64 << 20)
    begun = time.monotonic()
    with pytest.raises(PortError) as late:
        connections[1].flush(0.3)
    assert 0.3 <= time.monotonic() - begun < PROMPT
    assert late.value.kind == "timeout" and "rank 1" in str(late.value)
    assert port.failure() is None
    print("late", flush=True)
    connections[1].update(there, 0, 3)
    connections[1].flush(DEADLINE)
    hear("done", 1)


def test_a_flush_ends_at_its_deadline_and_may_be_repeated(world: World) -> None:
    running = world.start(2, wait_for_the_stopped)
    for child in running.children:
        child.wait_for("ready", DEADLINE)
    pid = running.children[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        folder = running.outcomes[0].parent
        (folder / "stopped-of1").write_bytes(b"")
        running.children[0].wait_for("late", DEADLINE)
    finally:
        os.kill(pid, signal.SIGCONT)
    running.results()


def end_without_a_word(how: str) -> tuple[bool, str]:
    port, connections = connected(ETHERNET)
    target = Memory(64 << 20)
    there = exchanged(port, target, 1 - rank())
    if rank() == 0:
        source = Memory(64 << 20)
        kept.append(source.register(port))
        # More than socket buffers hold: it is sent while the program exits.
        connections[1].write(there, 0, kept[-1], 0, 64 << 20)
        connections[1].update(there, 0, 4)
        if how == "exception":
            sys.excepthook = lambda *_: None
            sys.last_value = RuntimeError("as an uncaught exception leaves it")
        globals()["held"] = (port, connections)
        return False, ""
    if how == "end":
        target.await_word(0, 4)
    until = time.monotonic() + PROMPT
    while not connections[0].is_over:
        assert time.monotonic() < until
        time.sleep(0.001)
    with pytest.raises(PortError) as lost:
        connections[0].check()
    assert lost.value.kind == "lost" and "rank 0" in str(lost.value)
    if how == "end":
        # Nothing follows.
        time.sleep(0.05)
    while how == "exception" and port.failure() is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    return port.failure() is not None, str(lost.value)


@pytest.mark.parametrize("how", ["end", "exception"])
def test_a_program_that_ends_is_a_failure_only_after_an_exception(world: World, how: str) -> None:
    is_failed, words = world.run(2, end_without_a_word, how, exits_fully=True)[1]
    assert is_failed is (how == "exception"), words


def watch_a_group() -> str | None:
    bootstrap = meet()
    port = _native.Port(f"rank {rank()}", None)
    port.watch(bootstrap.native)
    assert port.failure() is None
    bootstrap.barrier()
    tell("left the barrier", b"")
    if rank() == 0:
        hear("left the barrier", 1)
        bootstrap.native.abort()
    until = time.monotonic() + PROMPT
    while port.failure() is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    with pytest.raises(PortError):
        port.offer(ETHERNET)
    return port.failure()


def test_a_port_fails_with_the_group_that_it_watches(world: World) -> None:
    for words in world.run(2, watch_a_group):
        assert words is not None and "rank 0" in words


# --- invalid calls -----------------------------------------------------------------------------------------------------


def test_invalid_calls_are_rejected_with_the_reason() -> None:
    port, other = _native.Port("rank 0", "127.0.0.1"), _native.Port("rank 1", "127.0.0.1")
    memory = Memory(4096)
    mine = memory.register(port)
    one, two = port.offer(ETHERNET), other.offer(ETHERNET)
    connection = port.connect(one, two.record, 1, PROMPT)
    back = other.connect(two, one.record, 0, PROMPT)
    theirs = memory.register(other)

    def refused(words: str, kind: str, call: object, *arguments: object) -> None:
        with pytest.raises(PortError, match=words) as error:
            call(*arguments)  # type: ignore[operator]
        assert error.value.kind == kind

    refused("out of bounds", "argument", connection.write, theirs, 4000, mine, 0, 97)
    refused("out of bounds", "argument", connection.write, theirs, 0, mine, 4096, 1)
    refused("not aligned", "argument", connection.update, theirs, 12, 1)
    refused("not registered by rank 1", "argument", connection.update, mine, 0, 1)
    refused("invalid connection offer", "argument", port.connect, port.offer(ETHERNET), b"hello", 1, 1.0)
    refused("invalid record", "argument", port.remote, b"hello" * 100)
    refused("used before", "argument", port.connect, one, two.record, 1, 1.0)
    refused(
        "shared memory",
        "argument",
        port.connect,
        port.offer(ETHERNET),
        other.offer(SHARED_MEMORY).record,
        1,
        1.0,
    )
    refused("IB3", "unsupported", port.offer, IB3)
    refused("unknown transport 0x3", "argument", port.offer, 3)
    refused("invalid memory", "argument", port.register, 0, 10, ETHERNET)
    refused("unknown transports", "argument", port.register, memory.address, 10, 1 << 20)
    refused("seconds", "argument", connection.flush, -1.0)
    if _native.cuda_unavailable_reason() is not None:
        refused("CUDA", "unsupported", port.offer, 1)
    connection.flush(PROMPT)
    back.flush(PROMPT)


def test_memory_is_kept_until_the_last_registration_is_gone() -> None:
    import gc
    import weakref

    port = _native.Port("rank 0", "127.0.0.1")
    memory = Memory(4096)
    alive = weakref.ref(memory)
    first, second = memory.register(port), memory.register(port)
    again = port.remote(first.serialize())
    assert again.address == memory.address
    del memory, first, second
    gc.collect()
    assert alive() is not None
    del again
    gc.collect()
    assert alive() is None


def test_a_missing_peer_is_named_at_the_deadline() -> None:
    port, other = _native.Port("rank 0", "127.0.0.1"), _native.Port("rank 1", "127.0.0.1")
    offer = other.offer(ETHERNET)
    record = offer.record
    del offer, other
    begun = time.monotonic()
    with pytest.raises(PortError, match="rank 7") as error:
        port.connect(port.offer(ETHERNET), record, 7, 3.0)
    assert error.value.kind in ("lost", "timeout") and time.monotonic() - begun < PROMPT
