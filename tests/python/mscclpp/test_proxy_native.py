"""FIFOs, semaphores, proxies and their channels, as the package ``mscclpp`` uses them: without a GPU, the host pushes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest
from ringfold import _native
from ringfold._error import PortError
from world import DEADLINE, World, await_reached, meet, others, rank, reach

if TYPE_CHECKING:
    from mscclpp import Communicator

# Far below the deadlines, far above the expected time.
PROMPT = 10.0
NBYTES = 1 << 16
TRANSPORTS = ("Ethernet", "SharedMemory")
SIZES = (2, 3)


# --- FIFOs -------------------------------------------------------------------------------------------------------------


def test_a_trigger_stays_until_it_is_popped_and_positions_go_on_over_laps() -> None:
    fifo = _native.PortFifo(3, False)
    assert (fifo.size, fifo.poll(), fifo.pop()) == (3, None, False)
    for number in range(20):
        assert fifo.push(number, number << 1) == number
        assert fifo.poll() == fifo.poll() == (number, number << 1)
        with pytest.raises(PortError, match=f"position {number}"):
            fifo.sync(number, 0.01)
        assert fifo.pop()
        fifo.sync(number, 0.0)
        assert fifo.poll() is None


def test_the_highest_bit_of_a_trigger_is_the_queues_own() -> None:
    fifo = _native.PortFifo(1, False)
    for pushed in (1 << 63, 0, (1 << 64) - 1, 7):
        fifo.push(pushed, pushed)
        assert fifo.poll() == (pushed, pushed & ~(1 << 63))
        fifo.pop()


def test_a_full_fifo_waits_for_space_and_times_out() -> None:
    fifo = _native.PortFifo(2, False)
    fifo.push(1, 0)
    fifo.push(2, 0)
    with pytest.raises(PortError) as late:
        fifo.push(3, 0, 0.05)
    assert late.value.kind == "timeout"
    popper = threading.Timer(0.05, fifo.pop)
    popper.start()
    assert fifo.push(3, 0, PROMPT) == 2
    popper.join()


def test_threads_push_at_once_and_nothing_is_lost() -> None:
    fifo = _native.PortFifo(7, False)
    each = 500

    def push(number: int) -> None:
        for count in range(each):
            fifo.push(number, count, DEADLINE)

    pushers = [threading.Thread(target=push, args=(number,)) for number in range(3)]
    for pusher in pushers:
        pusher.start()
    expected, until = [0, 0, 0], time.monotonic() + DEADLINE
    while sum(expected) < 3 * each:
        found = fifo.poll()
        if found is None:
            assert time.monotonic() < until
            continue
        number, count = found
        assert expected[number] == count
        expected[number] += 1
        fifo.pop()
    for pusher in pushers:
        pusher.join(DEADLINE)


@pytest.mark.parametrize("size", [0, (1 << 20) + 1])
def test_an_invalid_fifo_size_is_rejected(size: int) -> None:
    with pytest.raises(PortError) as refused:
        _native.PortFifo(size, False)
    assert refused.value.kind == "argument"


# --- handles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_90", "compute_80"])
def test_handles_have_the_layout_that_kernels_expect(arch: str) -> None:
    try:
        _native.cuda_compiler()
    except PortError as error:
        pytest.skip(f"needs NVRTC: {error}")
    offsets = {
        "FifoDeviceHandle": ("triggers_", "head_", "tail_", "tailCache_", "abort_", "size_"),
        "Host2DeviceSemaphoreDeviceHandle": ("inbound_", "expected_", "abort_", "peer_"),
        "MemoryDevice2DeviceSemaphoreDeviceHandle": (
            "inbound_",
            "remoteInbound_",
            "expected_",
            "abort_",
            "peer_",
        ),
        "BasePortChannelDeviceHandle": ("semaphoreId_", "semaphore_", "fifo_"),
    }
    places = {
        "FifoDeviceHandle": (0, 8, 16, 24, 32, 40),
        "Host2DeviceSemaphoreDeviceHandle": (0, 8, 16, 24),
        "MemoryDevice2DeviceSemaphoreDeviceHandle": (0, 8, 16, 24, 32),
        "BasePortChannelDeviceHandle": (0, 8, 40),
    }
    sizes = _native.port_handle_sizes()
    lines = [f"static_assert(sizeof({name}) == {size});" for name, size in sizes.items()]
    lines += [f"static_assert(alignof({name}) == 8);" for name in sizes if name.endswith("Handle")]
    # NVRTC has no offsetof; this is what its compiler makes of one.
    lines += [
        f"static_assert(__INTADDR__(&(static_cast<{name}*>(nullptr)->{field})) == {place});"
        for name, fields in offsets.items()
        for field, place in zip(fields, places[name], strict=True)
    ]
    source = "\n".join(
        [
            "#include <mscclpp/port_channel_device.hpp>",
            "#include <mscclpp/memory_channel_device.hpp>",
            "using namespace mscclpp;",
            *lines,
            'extern "C" __global__ void nothing() {}',
        ]
    )
    assert _native.cuda_compile(source, "sizes.cu", arch, {}, [], ["-std=c++17"])
    wrong = source.replace("sizeof(ProxyTrigger) == 16", "sizeof(ProxyTrigger) == 24")
    with pytest.raises(PortError, match="static"):
        _native.cuda_compile(wrong, "sizes.cu", arch, {}, [], ["-std=c++17"])


# --- ranks -------------------------------------------------------------------------------------------------------------


@dataclass
class PeerChannel:
    """A channel to one peer, which writes into `inbox` and gets what is in `outbox`."""

    semaphore: _native.PortSemaphore
    channel: _native.PortChannel
    inbox: memoryview
    outbox: memoryview
    registered: object
    """Others write into the inbox as long as it is registered."""


@dataclass
class ProxySetup:
    """The proxy of a rank and its channels."""

    communicator: Communicator
    proxy: _native.PortProxy
    by_peer: dict[int, PeerChannel]

    @property
    def port(self) -> _native.Port:
        return self.communicator.port


def connected(transport: str, fifo_size: int = 32, nbytes: int = NBYTES) -> ProxySetup:
    """Connects with all other ranks, with a proxy that is not started yet."""
    from mscclpp import Communicator, RegisteredMemory, Transport
    from mscclpp._host_memory import RawHostBuffer

    kind = Transport[transport]
    communicator = Communicator(meet())
    coming = {peer: communicator.connect(kind, peer) for peer in others()}
    connections = {peer: future.get() for peer, future in coming.items()}
    building = {peer: communicator.build_semaphore(connections[peer], peer) for peer in others()}

    def memory() -> tuple[RegisteredMemory, memoryview]:
        made = RawHostBuffer(nbytes)
        return communicator.register_memory(made.address, nbytes, kind, keep=made), made.buffer

    inboxes = {peer: memory() for peer in others()}
    for peer in others():
        communicator.send_memory(inboxes[peer][0], peer)
    remote = {peer: communicator.recv_memory(peer) for peer in others()}
    proxy = _native.PortProxy(communicator.port, fifo_size)
    by_peer = {}
    for peer in others():
        outbox, view = memory()
        semaphore = building[peer].get().native
        number = proxy.add_semaphore(semaphore)
        target, source = proxy.add_memory(remote[peer].get().native), proxy.add_memory(outbox.native)
        by_peer[peer] = PeerChannel(
            semaphore, proxy.channel(number, target, source), inboxes[peer][1], view, inboxes[peer][0]
        )
    return ProxySetup(communicator, proxy, by_peer)


def exchange_many(transport: str, rounds: int) -> int:
    """All pairs exchange data in many rounds."""
    setup = connected(transport)
    setup.proxy.start()
    checked = 0
    for number in range(rounds):
        nbytes = 1 + (number * 977) % NBYTES
        for peer, peer_channel in setup.by_peer.items():
            peer_channel.outbox[:nbytes] = bytes([(number * 7 + rank() * 31 + peer) % 256]) * nbytes
            if number % 3 == 0:
                peer_channel.channel.put_with_signal(0, 0, nbytes)
            elif number % 3 == 1:
                peer_channel.channel.put(0, 0, nbytes // 2)
                peer_channel.channel.put(nbytes // 2, nbytes // 2, nbytes - nbytes // 2)
                peer_channel.channel.signal()
                peer_channel.channel.flush(DEADLINE)
            else:
                peer_channel.channel.put_with_signal_and_flush(0, 0, nbytes, DEADLINE)
        for peer, peer_channel in setup.by_peer.items():
            peer_channel.channel.wait(DEADLINE)
            assert peer_channel.inbox[:nbytes] == bytes([(number * 7 + peer * 31 + rank()) % 256]) * nbytes, (
                number
            )
            checked += 1
        # Inboxes are reused after all have read them, outboxes after they were sent.
        for peer_channel in setup.by_peer.values():
            peer_channel.channel.signal()
        for peer_channel in setup.by_peer.values():
            peer_channel.channel.wait(DEADLINE)
            peer_channel.channel.flush(DEADLINE)
    setup.proxy.stop()
    assert not any(peer_channel.channel.poll() for peer_channel in setup.by_peer.values())
    assert setup.port.failure() is None
    setup.communicator.bootstrap().barrier()
    return checked


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_pairs_find_what_was_put_when_they_are_signalled(world: World, transport: str, size: int) -> None:
    rounds = 100
    assert world.run(size, exchange_many, transport, rounds) == [rounds * (size - 1)] * size


def stop_and_start(transport: str) -> int:
    setup = connected(transport, fifo_size=64)
    peer = 1 - rank()
    peer_channel, waits = setup.by_peer[peer], 0
    for number in range(10):
        peer_channel.outbox[:50] = bytes([number]) * 50
        for at in range(50):
            peer_channel.channel.put_with_signal(at, at, 1)
        setup.proxy.start()
        setup.proxy.stop()
        for _ in range(50):
            peer_channel.channel.wait(DEADLINE)
            waits += 1
        assert peer_channel.inbox[:50] == bytes([number]) * 50
        setup.communicator.bootstrap().barrier()
    return waits


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_stopping_does_what_was_pushed_and_it_may_be_started_again(world: World, transport: str) -> None:
    assert world.run(2, stop_and_start, transport) == [500, 500]


def views_of_a_semaphore(transport: str) -> None:
    setup = connected(transport)
    semaphore = setup.by_peer[1 - rank()].semaphore
    first, second = semaphore.host_to_host(), semaphore.host_to_device()
    for _ in range(3):
        first.signal()
    second.signal()
    for view in (first, second, semaphore.host_to_host()):
        for _ in range(4):
            view.wait(DEADLINE)
        assert not view.poll()
    del first, second
    setup.communicator.bootstrap().barrier()
    latest = semaphore.host_to_host()
    assert latest.poll() and latest.poll()
    with pytest.raises(PortError, match="kernels signal"):
        semaphore.memory().signal()
    setup.communicator.bootstrap().barrier()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_views_of_one_semaphore_share_its_word_and_have_their_own_counts(
    world: World, transport: str
) -> None:
    world.run(2, views_of_a_semaphore, transport)


def wait_until_timeout(transport: str) -> tuple[list[str], float, float]:
    setup = connected(transport)
    view = setup.by_peer[1 - rank()].semaphore.host_to_host()
    begun = time.monotonic()
    with pytest.raises(PortError) as late:
        view.wait(0.3)
    waited = time.monotonic() - begun
    with pytest.raises(PortError) as spun:
        view.wait(None, 2000)
    with pytest.raises(PortError) as flushed:
        setup.by_peer[1 - rank()].channel.flush(0.05)
    assert "not running" in str(flushed.value)
    setup.communicator.bootstrap().barrier()
    return [late.value.kind, spun.value.kind, str(late.value)], waited, time.monotonic() - begun


def test_a_wait_ends_in_time_and_names_the_rank(world: World) -> None:
    for number, (words, waited, all_in_all) in enumerate(world.run(2, wait_until_timeout, "SharedMemory")):
        assert words[:2] == ["timeout", "timeout"]
        assert f"rank {1 - number}" in words[2]
        assert 0.3 <= waited < PROMPT and all_in_all < 2 * PROMPT


def put_too_far(transport: str) -> list[str]:
    setup = connected(transport)
    peer_channel = setup.by_peer[1 - rank()]
    setup.proxy.start()
    setup.communicator.bootstrap().barrier()
    if rank() == 1:
        await_reached("failed", 0)
        return []
    peer_channel.channel.put(NBYTES - 1, 0, 2)
    words = []
    calls: list[Callable[[], None]] = [
        partial(peer_channel.channel.wait, DEADLINE),
        peer_channel.channel.signal,
        setup.proxy.stop,
    ]
    for call in calls:
        with pytest.raises(PortError) as failed:
            call()
        words.append(str(failed.value))
    failure = setup.port.failure()
    reach("failed")
    assert failure is not None
    assert setup.proxy.failure() is not None
    return [*words, failure]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_put_out_of_bounds_ends_all_waits_with_its_error(world: World, transport: str) -> None:
    words, _ = world.run(2, put_too_far, transport)
    assert len(words) == 4
    assert all("65536" in text for text in words), words


def numbers_out_of_range() -> None:
    setup = connected("SharedMemory")
    channel = setup.by_peer[1 - rank()].channel
    for offsets in ((1 << 32, 0, 1), (0, 1 << 32, 1), (0, 0, 1 << 32)):
        with pytest.raises(PortError, match="at most 4294967295") as refused:
            channel.put(*offsets)
        assert refused.value.kind == "argument"
    for numbers in ((1, 0, 0), (0, 2, 0), (0, 0, 2)):
        with pytest.raises(PortError, match="unknown (memory|semaphore)"):
            setup.proxy.channel(*numbers)
    base = setup.proxy.base_channel(0)
    assert (len(base.handle), len(channel.handle)) == (88, 96)
    with pytest.raises(PortError, match="no memories"):
        base.put(0, 0, 1)
    setup.proxy.start()
    base.signal()
    base.wait(DEADLINE)
    setup.proxy.stop()
    assert setup.port.failure() is None
    setup.communicator.bootstrap().barrier()


def test_values_too_large_for_a_trigger_are_rejected(world: World) -> None:
    world.run(2, numbers_out_of_range)


def wait_for_the_dead(transport: str) -> tuple[str, str, float]:
    setup = connected(transport)
    setup.proxy.start()
    setup.communicator.bootstrap().barrier()
    print("ready", flush=True)
    if rank() == 0:
        signal.pause()
    peer_channel = setup.by_peer[0]
    begun = time.monotonic()
    with pytest.raises(PortError) as lost:
        peer_channel.channel.wait(DEADLINE)
    took = time.monotonic() - begun
    try:
        setup.proxy.stop()
    except PortError:
        pass
    return lost.value.kind, f"{lost.value} {setup.port.failure()}", took


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_rank_is_named_at_once_to_those_who_wait_for_a_channel(
    world: World, transport: str, size: int
) -> None:
    running = world.start(size, wait_for_the_dead, transport)
    for child in running.children:
        child.wait_for("ready", DEADLINE)
        child.wait_until_blocked()
    os.kill(running.children[0].pid, signal.SIGKILL)
    running.children = running.children[1:]
    running.outcomes = running.outcomes[1:]
    for kind, words, took in running.results():
        assert kind in ("lost", "aborted")
        assert "rank 0" in words, words
        assert took < PROMPT


def interrupted() -> str:
    setup = connected("SharedMemory")
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        setup.by_peer[1 - rank()].channel.wait(None)
    assert time.monotonic() - begun < PROMPT
    setup.communicator.bootstrap().barrier()
    return "interrupted"


def test_a_signal_interrupts_a_wait(world: World) -> None:
    assert world.run(2, interrupted) == ["interrupted"] * 2


def leave_without_stopping() -> None:
    setup = connected("Ethernet")
    peer_channel = setup.by_peer[1 - rank()]
    setup.proxy.start()
    peer_channel.channel.put_with_signal(0, 0, 100)
    peer_channel.channel.wait(DEADLINE)
    setup.communicator.bootstrap().barrier()


def test_a_program_that_does_not_stop_its_proxy_ends_all_the_same(world: World) -> None:
    begun = time.monotonic()
    world.run(2, leave_without_stopping, exits_fully=True)
    assert time.monotonic() - begun < DEADLINE / 2


never_let_go: list[object] = []


def push_and_end() -> int:
    setup = connected("Ethernet")
    never_let_go.append(setup)
    peer_channel, heard = setup.by_peer[1 - rank()], 0
    setup.proxy.start()
    setup.communicator.bootstrap().barrier()
    for _ in range(500):
        if rank() == 0:
            peer_channel.channel.put_with_signal(0, 0, 1000)
        else:
            peer_channel.channel.wait(DEADLINE)
            heard += 1
    return heard


def test_what_was_pushed_when_a_program_ends_still_arrives(world: World) -> None:
    assert world.run(2, push_and_end, exits_fully=True) == [0, 500]


def idle_proxy() -> float:
    setup = connected("SharedMemory")
    setup.proxy.start()
    peer_channel = setup.by_peer[1 - rank()]
    peer_channel.channel.signal()
    peer_channel.channel.wait(DEADLINE)
    setup.communicator.bootstrap().barrier()
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(1.0)
    spent = time.process_time() - before
    setup.communicator.bootstrap().barrier()
    # It still wakes at once.
    peer_channel.channel.put_with_signal_and_flush(0, 0, 8, PROMPT)
    peer_channel.channel.wait(PROMPT)
    setup.proxy.stop()
    setup.communicator.bootstrap().barrier()
    return spent


def test_an_idle_proxy_costs_next_to_nothing(world: World) -> None:
    assert max(world.run(2, idle_proxy)) < 0.2
