"""Calls that two ranks make together: futures, and how calls are matched."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from typing import Any

import mscclpp
import pytest
from mscclpp import Communicator, EndpointConfig, Error, Transport, TransportFlags
from world import DEADLINE, World, await_reached, meet, rank, reach

ETHERNET, SHARED = Transport.Ethernet, Transport.SharedMemory


def words(*values: int) -> Any:
    return (ctypes.c_uint64 * max(len(values), 1))(*values)


def register(communicator: Communicator, memory: Any, transports: Any = ETHERNET) -> mscclpp.RegisteredMemory:
    return communicator.register_memory(
        ctypes.addressof(memory), ctypes.sizeof(memory), transports, keep=memory
    )


def eventually(what: Any, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def sizes_in_order() -> list[int]:
    """Memories of different sizes, asked for in another order than they were sent."""
    communicator = Communicator(meet())
    peer = 1 - rank()
    mine = [words(*range(count)) for count in range(1, 6)]
    for memory in mine:
        communicator.send_memory(register(communicator, memory), peer, tag=3)
    communicator.send_memory(register(communicator, words(*range(99))), peer, tag=4)
    futures = [communicator.recv_memory(peer, tag=3) for _ in mine]
    other = communicator.recv_memory(peer, tag=4)
    found = {at: futures[at].get().size() for at in (4, 0, 2, 1, 3)}
    assert futures[2].get() is futures[2].get()
    communicator.bootstrap().barrier()
    return [found[at] for at in range(5)] + [other.get().size()]


def test_calls_are_matched_in_their_order_for_each_tag_however_they_are_asked(world: World) -> None:
    assert world.run(2, sizes_in_order) == [[8, 16, 24, 32, 40, 792]] * 2


def connect_in_a_circle() -> list[int]:
    """Each rank asks another one first: no call waits before all ranks have called."""
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    n, me = bootstrap.get_n_ranks(), rank()
    order = [(me + step) % n for step in range(1, n)]
    futures = {peer: communicator.connect(EndpointConfig(ETHERNET), peer) for peer in order}
    connections = {peer: futures[peer].get() for peer in order}
    semaphores = {peer: communicator.build_semaphore(connections[peer]) for peer in reversed(order)}
    hosts = {peer: mscclpp.Host2HostSemaphore(semaphores[peer].get()) for peer in order}
    for peer in order:
        hosts[peer].signal()
    for peer in reversed(order):
        hosts[peer].wait(timeout=DEADLINE)
    bootstrap.barrier()
    return sorted(connection.remote_rank() for connection in connections.values())


@pytest.mark.parametrize("n", [3, 8])
def test_nothing_waits_before_its_get(world: World, n: int) -> None:
    expected = [[other for other in range(n) if other != me] for me in range(n)]
    assert world.run(n, connect_in_a_circle) == expected


def mismatched() -> str:
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    if rank() == 0:
        communicator.send_memory(register(communicator, words(1)), 1)
        bootstrap.barrier()
        return ""
    try:
        communicator.connect(ETHERNET, 0).get()
    except Error as error:
        bootstrap.barrier()
        return str(error)
    return "no error"


def test_mismatched_calls_are_reported(world: World) -> None:
    said = world.run(2, mismatched)[1]
    assert "rank 0 called send_memory, but this rank waits in connect" in said


def several_communicators() -> int:
    bootstrap = meet()
    peer = 1 - rank()
    first, second = Communicator(bootstrap), Communicator(bootstrap)
    one, other = words(1), words(1, 2)
    first.send_memory(register(first, one), peer)
    second.send_memory(register(second, other), peer)
    a, b = first.recv_memory(peer), second.recv_memory(peer)
    total = b.get().size() * 100 + a.get().size()
    bootstrap.barrier()
    return total


def test_communicators_of_one_bootstrap_share_its_order(world: World) -> None:
    assert world.run(2, several_communicators) == [1608, 1608]


def write_over(transport: str, shared: bool) -> list[int]:
    """Writes and updates of words that the peer sees without a call."""
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    peer, way = 1 - rank(), Transport[transport]
    if shared:
        buffer = mscclpp.RawHostBuffer(4096 * 8)
        memory = (ctypes.c_uint64 * 4096).from_buffer(buffer.buffer)
        own = communicator.register_memory(buffer.address, buffer.nbytes, way)
    else:
        memory = (ctypes.c_uint64 * 4096)()
        own = register(communicator, memory, way)
    source = (ctypes.c_uint64 * 2048)(*range(rank() * 1_000_000, rank() * 1_000_000 + 2048))
    mine = register(communicator, source, way)
    connection = communicator.connect(way, peer)
    communicator.send_memory(own, peer)
    theirs = communicator.recv_memory(peer).get()
    line = connection.get()
    assert line.transport() is way and line.remote_rank() == peer and theirs.size() == 4096 * 8
    line.write(theirs, 8, mine, 0, 2048 * 8)
    line.update(theirs, 4095 * 8, 7)
    assert eventually(lambda: memory[4095] == 7), "the word did not come"
    got = list(memory[1:2049])
    local = words(0)
    line.update_and_sync(theirs, 4094 * 8, ctypes.addressof(local), 1 << 63)
    assert local[0] == 1 << 63
    assert eventually(lambda: memory[4094] == 1 << 63)
    line.flush()
    line.flush(5_000_000)
    with pytest.raises(Error):
        line.write(theirs, 4095 * 8, mine, 0, 16)
    with pytest.raises(Error, match="dst_offset is -8"):
        line.update(theirs, -8, 1)
    bootstrap.barrier()
    assert got == [peer * 1_000_000 + at for at in range(2048)]
    return [memory[0], memory[2049]]


@pytest.mark.parametrize("transport", ["Ethernet", "SharedMemory"])
@pytest.mark.parametrize("shared", [False, True])
def test_writes_arrive_in_order_without_the_other_sides_help(
    world: World, transport: str, shared: bool
) -> None:
    assert world.run(2, write_over, transport, shared) == [[0, 0], [0, 0]]


def parts_of_one_memory() -> list[int]:
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    peer = 1 - rank()
    whole = mscclpp.RawHostBuffer(1 << 16)
    view = (ctypes.c_uint64 * 8192).from_buffer(whole.buffer)
    parts = [
        communicator.register_memory(whole.address + at, 4096, SHARED | ETHERNET) for at in (0, 2048, 8192)
    ]
    value = words(rank() + 1, rank() + 2, rank() + 3)
    source = register(communicator, value, SHARED)
    for part in parts:
        communicator.send_memory(part, peer)
    theirs = [communicator.recv_memory(peer).get() for _ in parts]
    line = communicator.connect(SHARED, peer).get()
    for at, part in enumerate(theirs):
        line.write(part, 64, source, 8 * at, 8)
    line.flush()
    bootstrap.barrier()
    got = [view[8], view[256 + 8], view[1024 + 8]]
    bootstrap.barrier()
    return got


def test_several_registrations_inside_one_memory_coexist(world: World) -> None:
    assert world.run(2, parts_of_one_memory) == [[2, 3, 4], [1, 2, 3]]


def records() -> tuple[int, int, bool]:
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    memory = register(communicator, words(5, 6), SHARED | ETHERNET)
    record = memory.serialize()
    every = bootstrap.all_gather(record)
    # The own memory has the same address.
    own = mscclpp.RegisteredMemory.deserialize(every[rank()])
    other = mscclpp.RegisteredMemory.deserialize(every[1 - rank()], communicator)
    assert own.data() == memory.data() and other.transports() == SHARED | ETHERNET
    with pytest.raises(Error):
        mscclpp.RegisteredMemory.deserialize(b"nonsense")
    bootstrap.barrier()
    return own.size(), other.size(), own.is_device()


def test_registered_memory_travels_as_bytes(world: World) -> None:
    assert world.run(2, records) == [(16, 16, False)] * 2


def old_names() -> int:
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    peer = 1 - rank()
    memory = words(0, 0)
    own = register(communicator, memory, ETHERNET)
    connection = communicator.connect_on_setup(peer, 0, ETHERNET)
    communicator.send_memory_on_setup(own, peer, 5)
    future = communicator.recv_memory_on_setup(peer, 5)
    communicator.setup()
    line, theirs = connection.get(), future.get()
    # The older constructor, of a communicator and a connection; the other rank does the same.
    semaphore = mscclpp.Host2HostSemaphore(communicator, line)
    communicator.setup()
    line.update(theirs, 8, 40 + rank())
    semaphore.signal()
    semaphore.wait(timeout=DEADLINE)
    got = memory[1]
    bootstrap.barrier()
    return got


def test_the_names_of_early_2025_are_there(world: World) -> None:
    assert world.run(2, old_names) == [41, 40]


def let_go_in_any_order() -> bool:
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    peer = 1 - rank()
    line = communicator.connect(ETHERNET, peer).get()
    semaphore = communicator.build_semaphore(line).get()
    host = mscclpp.Host2HostSemaphore(semaphore)
    bootstrap.barrier()
    if rank() == 0:
        del bootstrap, communicator
    else:
        del semaphore, line
    gc.collect()
    host.signal()
    host.wait(timeout=DEADLINE)
    del host
    gc.collect()
    return True


def test_objects_can_be_dropped_in_any_order(world: World) -> None:
    assert world.run(2, let_go_in_any_order) == [True, True]


def from_threads() -> int:
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    peer = 1 - rank()
    memory = words(*[0] * 64)
    own = register(communicator, memory)
    communicator.send_memory(own, peer)
    theirs, line = communicator.recv_memory(peer), communicator.connect(ETHERNET, peer)
    results: list[object] = []
    askers = [threading.Thread(target=lambda: results.append((line.get(), theirs.get()))) for _ in range(4)]
    for thread in askers:
        thread.start()
    for thread in askers:
        thread.join(DEADLINE)
    assert len({id(one) for one, _ in results}) == 1  # type: ignore[misc]
    writers = [
        threading.Thread(target=line.get().update, args=(theirs.get(), 8 * at, at)) for at in range(64)
    ]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(DEADLINE)
    line.get().flush()
    bootstrap.barrier()
    return sum(memory)


def test_any_thread_may_call(world: World) -> None:
    assert world.run(2, from_threads) == [2016, 2016]


def alone() -> Communicator:
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    bootstrap.initialize(bootstrap.create_unique_id())
    return Communicator(bootstrap)


def test_invalid_arguments_are_rejected_with_the_reason() -> None:
    communicator = alone()
    with pytest.raises(mscclpp.IbError, match="InfiniBand"):
        communicator.connect(Transport.IB3, 0)
    with pytest.raises(mscclpp.IbError, match="InfiniBand"):
        communicator.register_memory(4096, 8, Transport.IB0 | ETHERNET)
    with pytest.raises(Error, match="0 bytes"):
        communicator.register_memory(4096, 0, ETHERNET)
    with pytest.raises(Error, match="address 0"):
        communicator.register_memory(0, 8, ETHERNET)
    with pytest.raises(Error, match="needs a transport"):
        communicator.connect(EndpointConfig(), 0)
    with pytest.raises(Error, match=r"through_host is for Transport\.CudaIpc, not Ethernet"):
        communicator.connect(EndpointConfig(ETHERNET, through_host=True), 0)
    with pytest.raises(Error, match="rank 1 is out of range"):
        communicator.recv_memory(1)
    with pytest.raises(Error, match="tag -1"):
        communicator.recv_memory(0, -1)
    with pytest.raises(Error, match="not initialised"):
        Communicator(mscclpp.TcpBootstrap.create(0, 1))
    buffer = mscclpp.RawHostBuffer(4096)
    with pytest.raises(Error, match="reach beyond"):
        communicator.register_memory(buffer.address + 4088, 16, ETHERNET)


def test_arguments_of_the_wrong_type_are_rejected() -> None:
    communicator = alone()
    line = communicator.connect(SHARED, 0).get()
    memory = words(1, 2)
    own = register(communicator, memory, SHARED)
    service = mscclpp.ProxyService()
    for call in (
        lambda: line.write(memory, 0, own, 0, 8),
        lambda: line.write(own, 0, memory, 0, 8),
        lambda: line.update(memory, 0, 8),
        lambda: service.add_memory(memory),
        lambda: communicator.send_memory(memory, 0),
        lambda: mscclpp.MemoryChannel(
            mscclpp.MemoryDevice2DeviceSemaphore(communicator, line), memory, own
        ).device_handle(),
    ):
        with pytest.raises(Error, match="RegisteredMemory, not c_"):
            call()
    with pytest.raises(Error, match="address of a word"):
        line.update_and_sync(own, 0, memory, 8)
    with pytest.raises(Error, match="not Host2HostSemaphore"):
        service.add_semaphore(mscclpp.Host2HostSemaphore(communicator, line))
    with pytest.raises(Error, match="MemoryDevice2DeviceSemaphore, not int"):
        mscclpp.MemoryChannel(3, own, own)
    with pytest.raises(Error, match="must be bytes of serialize"):
        mscclpp.RegisteredMemory.deserialize(None)
    with pytest.raises(Error, match="-1 triggers"):
        mscclpp.Fifo(-1)
    with pytest.raises(Error, match="of type NoneType"):
        mscclpp.TcpBootstrap.create(0, 1).initialize(None)


def test_arguments_have_all_documented_keyword_names() -> None:
    bootstrap = mscclpp.TcpBootstrap.create(rank=0, n_ranks=1)
    bootstrap.initialize(unique_id=bootstrap.create_unique_id(), timeout_sec=5)
    communicator = Communicator(bootstrap=bootstrap)
    line = communicator.connect(config=EndpointConfig(transport=SHARED), remote_rank=0, tag=3).get()
    old = communicator.connect_on_setup(remote_rank=0, tag=3, config=SHARED).get()
    assert communicator.connect(cfg=SHARED, rank=0).get().remote_rank() == old.remote_rank() == 0
    memory, word = words(7, 0, 0), words(0)
    own = communicator.register_memory(
        ptr=ctypes.addressof(memory), size=24, transports=TransportFlags(SHARED)
    )
    line.write(dst=own, dstOffset=8, src=own, srcOffset=0, size=8)
    line.write(dst=own, dst_offset=16, src=own, src_offset=0, size=8)
    line.update_and_sync(dst=own, dst_offset=0, src_ptr=ctypes.addressof(word), new_value=9)
    line.flush(timeout_usec=5_000_000)
    assert list(memory) == [9, 7, 7] and word[0] == 9
    semaphore = communicator.build_semaphore(connection=line, remote_rank=0, tag=0).get()
    for kind in (
        mscclpp.Host2DeviceSemaphore,
        mscclpp.Host2HostSemaphore,
        mscclpp.MemoryDevice2DeviceSemaphore,
    ):
        kind(semaphore=semaphore)
        kind(communicator=communicator, connection=line).semaphore()
    channel = mscclpp.MemoryChannel(semaphore=semaphore, dst=own, src=own, packet_buffer=own)
    assert len(channel.device_handle().raw) == 64
    service = mscclpp.ProxyService(fifo_size=8)
    number = service.add_semaphore(line)
    assert len(service.port_channel(id=number, dst=service.add_memory(own), src=0).device_handle().raw) == 96
    with pytest.raises(TypeError, match="twice"):
        line.write(own, dst_offset=8, dstOffset=8, src=own, src_offset=0, size=8)


def test_a_wait_with_a_spin_limit_ends_soon() -> None:
    communicator = alone()
    semaphore = mscclpp.Host2HostSemaphore(communicator, communicator.connect(SHARED, 0).get())
    began = time.monotonic()
    with pytest.raises(Error, match="rank 0"):
        semaphore.wait(max_spin_count=10_000_000)
    assert time.monotonic() - began < 30
    semaphore.signal()
    semaphore.wait(10_000_000)


def test_a_record_is_mapped_by_whichever_communicator_lives() -> None:
    communicator = alone()
    own = register(communicator, words(1), SHARED)
    alone()
    gc.collect()
    assert mscclpp.RegisteredMemory.deserialize(own.serialize()).data() == own.data()


def test_communicators_of_one_process_fail_each_for_itself() -> None:
    one, other = alone(), alone()
    one.abort("enough")
    line = other.connect(SHARED, 0).get()
    line.flush()
    assert other.failure() is None
    other.check()


def test_every_call_of_an_aborted_communicator_raises() -> None:
    communicator = alone()
    assert communicator.failure() is None
    communicator.abort("enough")
    assert "enough" in (communicator.failure() or "")
    with pytest.raises(Error, match="enough") as caught:
        communicator.check()
    assert caught.value.code is mscclpp.ErrorCode.Aborted
    with pytest.raises(Error, match="enough"):
        register(communicator, words(1))


def late() -> int:
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    if rank() == 0:
        await_reached("timed out", 1)
        communicator.send_memory(register(communicator, words(1)), 1)
        bootstrap.barrier()
        return 0
    future = communicator.recv_memory(0)
    with pytest.raises(Error, match="rank 0 has not made its call") as caught:
        future.get(timeout=0.3)
    assert caught.value.code is mscclpp.ErrorCode.Timeout
    # The communicator has not failed.
    assert communicator.failure() is None
    reach("timed out")
    nbytes = future.get(timeout=DEADLINE).size()
    bootstrap.barrier()
    return nbytes


def test_a_future_that_timed_out_can_be_waited_for_again(world: World) -> None:
    assert world.run(2, late) == [0, 8]


def test_sets_of_transports_behave_as_sets() -> None:
    flags = Transport.CudaIpc | Transport.Ethernet
    assert flags.has(Transport.CudaIpc) and not flags.has(Transport.IB0) and flags.count() == 2
    assert flags & ETHERNET == TransportFlags(ETHERNET) == ETHERNET
    assert (flags ^ ETHERNET) == Transport.CudaIpc and (flags - Transport.CudaIpc) == ETHERNET
    assert (~flags).has(Transport.IB7) and not (~flags).has(ETHERNET)
    assert TransportFlags().none() and not TransportFlags() and TransportFlags(*Transport).all()
    assert list(flags) == [Transport.CudaIpc, Transport.Ethernet] and hash(flags) == hash(
        ETHERNET | Transport.CudaIpc
    )
    flags |= Transport.IB1
    assert Transport.IB1 in flags and flags != ETHERNET
    with pytest.raises(TypeError):
        flags | 3  # type: ignore[operator]
