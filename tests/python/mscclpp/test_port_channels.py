"""Port channels between processes, driven by the host, without a GPU."""

from __future__ import annotations

import time
from typing import Any

import mscclpp
import pytest
from mscclpp import Error, Host2DeviceSemaphore, Host2HostSemaphore, ProxyService, Transport
from ports import free_port
from world import DEADLINE, World, join, others, rank, size

numpy = pytest.importorskip("numpy")

TRANSPORTS = ["Ethernet", "SharedMemory"]


def put_all(transport: str, old: bool) -> bool:
    """What the seed's kernel does, from the host."""
    group = join()
    connections = group.make_connection(others(), Transport[transport])
    part = 1000
    memory = mscclpp.HostBuffer(part * size(), dtype=numpy.int32)
    service = ProxyService()
    make = group.make_proxy_channels if old else group.make_port_channels
    channels = make(service, memory, connections)
    assert sorted(channels) == others()
    service.start_proxy()
    for turn in range(3):
        memory[rank() * part : (rank() + 1) * part] = turn * 100 + rank()
        group.barrier()
        for channel in channels.values():
            channel.put_with_signal_and_flush(4 * part * rank(), 4 * part * rank(), 4 * part)
        for channel in channels.values():
            channel.wait(timeout=DEADLINE)
        expected = numpy.repeat(numpy.arange(size(), dtype=numpy.int32) + turn * 100, part)
        assert (memory == expected).all()
        group.barrier()
    assert not any(channel.poll() for channel in channels.values())
    service.stop_proxy()
    return True


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_rank_puts_its_part_into_all_others(world: World, transport: str, ranks: int) -> None:
    assert all(world.run(ranks, put_all, transport, ranks == 2))


def plain_memory(transport: str, kind: str) -> list[int]:
    """Memory that is not in a file."""
    group = join()
    connections = group.make_connection(others(), Transport[transport])
    tensor: Any
    if kind == "torch":
        import torch

        tensor = torch.zeros(64, dtype=torch.int64)
    else:
        tensor = numpy.zeros(64, dtype=numpy.int64)
    service = ProxyService(fifo_size=16)
    channels = group.make_port_channels(service, tensor, connections)
    service.start_proxy()
    peer = 1 - rank()
    tensor[0] = 50 + rank()
    for at in range(1, 64):
        channels[peer].put(8 * at, 0, 8)
    channels[peer].signal()
    channels[peer].wait(timeout=DEADLINE)
    channels[peer].flush(DEADLINE)
    group.barrier()
    service.stop_proxy()
    return [int(tensor[1]), int(tensor[63])]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_memory_of_any_tensor_can_be_put_into(
    request: pytest.FixtureRequest, transport: str, kind: str
) -> None:
    world: World = request.getfixturevalue("torch_world" if kind == "torch" else "world")
    assert world.run(2, plain_memory, transport, kind) == [[51, 51], [50, 50]]


def with_scratch(registered: bool, old: bool) -> list[int]:
    group = join()
    connections = group.make_connection(others(), Transport.SharedMemory)
    tensor = numpy.arange(8, dtype=numpy.int64) + 10 * rank()
    scratch = mscclpp.HostBuffer(16, dtype=numpy.int64)
    service = ProxyService()
    given = group.register_local_memory(scratch, connections) if registered else scratch
    make = group.make_proxy_channels_with_scratch if old else group.make_port_channels_with_scratch
    channel = make(service, tensor, given, connections)[1 - rank()]
    service.start_proxy()
    channel.put_with_signal(64, 0, 64)
    channel.wait(timeout=DEADLINE)
    group.barrier()
    service.stop_proxy()
    assert not scratch[:8].any() and list(tensor) == [10 * rank() + at for at in range(8)]
    return [int(value) for value in scratch[8:]]


@pytest.mark.parametrize("registered", [False, True])
def test_scratch_is_where_the_other_rank_puts(world: World, registered: bool) -> None:
    got = world.run(2, with_scratch, registered, not registered)
    assert got == [list(range(10, 18)), list(range(8))]


def by_ids() -> list[int]:
    """Semaphores and memories that a program registers with a proxy itself."""
    group = join()
    connections = group.make_connection(others(), Transport.Ethernet)
    memory = numpy.zeros(8, dtype=numpy.int64)
    memory[0] = rank() + 1
    service = ProxyService()
    bases = group.register_semaphore_with_proxy(service, connections)
    ids = group.register_memory_with_proxy(service, memory, connections)
    assert sorted(ids) == list(range(size())) and len(set(ids.values())) == size()
    semaphores = group.make_semaphores(connections)
    peer = 1 - rank()
    number = service.add_semaphore(Host2DeviceSemaphore(semaphores[peer]))
    channel = service.proxy_channel(number, ids[peer], ids[rank()])
    assert len(service.base_proxy_channel(number).device_handle().raw) == 88
    assert len(bases[peer].device_handle().raw) == 88 and len(channel.device_handle().raw) == 96
    service.start_proxy()
    channel.put_with_signal(8, 0, 8)
    channel.wait(timeout=DEADLINE)
    bases[peer].signal()
    bases[peer].wait(timeout=DEADLINE)
    group.barrier()
    service.stop_proxy()
    return [int(value) for value in memory[:2]]


def test_ids_of_a_proxy_name_memories_and_semaphores(world: World) -> None:
    assert world.run(2, by_ids) == [[1, 2], [2, 1]]


def pushed_before_the_end() -> list[int]:
    group = join()
    connections = group.make_connection(others(), Transport.SharedMemory)
    memory = mscclpp.HostBuffer(1024, dtype=numpy.int64)
    service = ProxyService()
    channel = group.make_port_channels(service, memory, connections)[1 - rank()]
    memory[:512] = rank() + 1
    # The proxy does not run yet.
    for at in range(100):
        channel.put(8 * (512 + at), 8 * at, 8)
    assert not memory[512:].any()
    group.barrier()
    service.start_proxy()
    service.stop_proxy()
    group.barrier()
    return [int(memory[512]), int(memory[611]), int(memory[612])]


def test_stopping_a_proxy_first_executes_what_was_pushed(world: World) -> None:
    assert world.run(2, pushed_before_the_end) == [[2, 2, 0], [1, 1, 0]]


def shared_word() -> list[bool]:
    """Several objects on one semaphore: each has its own count."""
    group = join()
    connections = group.make_connection(others(), Transport.SharedMemory)
    peer = 1 - rank()
    semaphore = group.make_semaphores(connections)[peer]
    one, other = Host2HostSemaphore(semaphore), Host2DeviceSemaphore(semaphore)
    old = group.make_semaphore(connections, Host2HostSemaphore)[peer]
    assert isinstance(old, Host2HostSemaphore)
    one.signal()
    one.wait(timeout=DEADLINE)
    other.wait(timeout=DEADLINE)
    seen = [one.poll(), other.poll()]
    group.barrier()
    old.signal()
    old.wait(timeout=DEADLINE)
    try:
        old.wait(1000)
    except Error as error:
        assert error.code is mscclpp.ErrorCode.Timeout
    else:
        raise AssertionError("a wait without a signal succeeded")
    began = time.monotonic()
    with pytest.raises(Error):
        old.wait(timeout=0.2)
    assert time.monotonic() - began < 10
    group.barrier()
    return seen


def test_objects_on_one_semaphore_share_its_word(world: World) -> None:
    assert world.run(2, shared_word) == [[False, False]] * 2


def tensors_and_endpoints() -> list[int]:
    """A transport per peer, and arrays sent by the bootstrap."""
    group = join()
    ways = {
        other: Transport.Ethernet if (rank() + other) % 2 else mscclpp.EndpointConfig(Transport.SharedMemory)
        for other in others()
    }
    connections = group.make_connection(others(), ways)
    memories = group.register_tensor_with_connections(numpy.zeros(4 + rank(), dtype=numpy.int64), connections)
    assert [connections[other].transport() is Transport.Ethernet for other in others()] == [
        bool((rank() + other) % 2) for other in others()
    ]
    assert group.nranks_per_node == size() and group.my_ib_device(3) is Transport.IB3
    data = numpy.full(3, rank())
    group.send(data, (rank() + 1) % size(), 1)
    got = numpy.zeros(3, dtype=data.dtype)
    group.recv(got, (rank() - 1) % size(), tag=1)
    assert (got == (rank() - 1) % size()).all()
    with pytest.raises(Error, match="not contiguous"):
        group.register_local_memory(numpy.zeros((4, 4))[:, 1], connections)
    with pytest.raises(Error, match="not str"):
        group.register_local_memory("text", connections)
    with pytest.raises(Error, match="IB8"):
        group.my_ib_device(8)
    group.barrier()
    return [memories[each].size() for each in range(size())]


def test_ways_may_differ_and_ones_own_memory_is_among_those_registered(world: World) -> None:
    assert world.run(3, tensors_and_endpoints) == [[32, 40, 48]] * 3


def old_order(trio: str) -> int:
    group = mscclpp.comm.CommGroup(None, trio, rank(), size())
    group.barrier()
    again = mscclpp.CommGroup(None, trio, rank=rank(), size=size())
    again.barrier()
    new = mscclpp.CommGroup(interfaceIpPortTrio=trio, rank=rank(), size=size())
    new.barrier()
    return group.nranks * 100 + again.nranks * 10 + new.nranks


def test_the_interface_ip_port_trio_can_be_the_second_argument(world: World) -> None:
    assert world.run(2, old_order, f"lo:127.0.0.1:{free_port()}") == [222, 222]


def by_torch() -> int:
    import os

    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['WORLD_FOLDER']}/store", rank=rank(), world_size=size()
    )
    group = mscclpp.CommGroup(torch_group=dist.group.WORLD)
    got = group.bootstrap.all_gather(bytes([group.my_rank]))
    dist.barrier()
    dist.destroy_process_group()
    return sum(part[0] for part in got)


def test_a_torch_group_can_be_where_ranks_meet(torch_world: World) -> None:
    assert torch_world.run(2, by_torch, deadline=120) == [1, 1]


def test_a_group_without_a_rendezvous_is_rejected() -> None:
    with pytest.raises(Error, match="mpi_comm, torch_group, or interfaceIpPortTrio"):
        mscclpp.CommGroup()
    with pytest.raises(Error, match="0 triggers"):
        ProxyService(0)


def test_a_fifo_gives_what_was_pushed_and_is_false_when_empty() -> None:
    fifo = mscclpp.Fifo(4, on_gpu=False)
    assert fifo.size() == 4 and not fifo.poll() and fifo.poll().fst == 0 and fifo.poll().snd == 0
    for lap in range(5):
        for at in range(4):
            assert fifo.push(lap * 10 + at, (1 << 63) | at) == lap * 4 + at
        for at in range(4):
            trigger = fifo.poll()
            assert trigger and (trigger.fst, trigger.snd) == (lap * 10 + at, at)
            fifo.pop()
            fifo.sync(lap * 4 + at, timeout=1)
    assert not fifo.poll()
    assert len(fifo.device_handle().raw) == 48


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_threads_of_one_process_may_be_the_ranks_of_a_group(transport: str) -> None:
    import threading

    ranks = 4
    port = free_port()
    got: dict[int, list[int]] = {}

    def be(each: int) -> None:
        group = mscclpp.CommGroup(None, f"127.0.0.1:{port}", each, ranks)
        connections = group.make_connection([o for o in range(ranks) if o != each], Transport[transport])
        memory = numpy.zeros(ranks, dtype=numpy.int64)
        memory[each] = each + 1
        service = ProxyService()
        channels = group.make_port_channels(service, memory, connections)
        service.start_proxy()
        for channel in channels.values():
            channel.put_with_signal(8 * each, 8 * each, 8)
        for channel in channels.values():
            channel.wait(timeout=DEADLINE)
        got[each] = memory.tolist()
        group.barrier()
        service.stop_proxy()

    threads = [threading.Thread(target=be, args=(each,)) for each in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert got == {each: [1, 2, 3, 4] for each in range(ranks)}


def test_collectives_without_a_gpu_are_an_error(world: World) -> None:
    from ringfold import _native

    if _native.cuda_unavailable_reason() is None:
        pytest.skip("there is a GPU")
    assert all("CUDA" in said for said in world.run(2, no_collectives))


def no_collectives() -> str:
    group = join()
    try:
        group.collectives()
    except mscclpp.CudaError as error:
        group.barrier()
        return str(error)
    return ""
