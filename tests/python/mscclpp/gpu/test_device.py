"""The device headers on a device: copies, packets, meetings, signals, and how every wait ends."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from gpu_device import (
    KERNELS,
    HostFifo,
    Page,
    Pair,
    finish,
    host_semaphore,
    kernels,
    memory_channel,
    port_channel,
    synchronize,
)

if TYPE_CHECKING:
    import torch

SIZES = [0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 64, 100, 1023, 4096, 65537]
# Where a source and a destination begin, behind a multiple of 16.
OFFSETS = [(0, 0), (4, 4), (8, 8), (8, 0), (1, 1), (15, 15), (0, 12), (3, 5)]
# What lies around a destination and must stay.
EDGE = 64


def bytes_of(count: int, seed: int = 1) -> torch.Tensor:
    """So many bytes that differ from their neighbours."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device="cuda", generator=generator)


def room_for(count: int) -> torch.Tensor:
    """Room with an edge on either side, all of one value."""
    import torch

    return torch.full((count + 2 * EDGE,), 0xA5, dtype=torch.uint8, device="cuda")


def holds_only(room: torch.Tensor, at: int, data: torch.Tensor) -> bool:
    """Whether the data is there and nothing else was written."""
    import torch

    end = at + data.numel()
    around = torch.cat([room[:at], room[end:]])
    return bool(torch.equal(room[at:end], data)) and bool((around == 0xA5).all())


def number() -> torch.Tensor:
    """A word for a kernel's answer."""
    import torch

    return torch.zeros(1, dtype=torch.int32, device="cuda")


def streams(count: int) -> list[torch.cuda.Stream]:
    """Streams that don't wait for each other or for the default one."""
    import torch

    synchronize()
    return [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("alignment", [4, 8, 16])
def test_a_copy_is_exact_at_every_alignment_and_size(page: Page, alignment: int) -> None:
    copies = kernels("copies.cu")
    for source_at, target_at in OFFSETS:
        for size in SIZES:
            source, target = bytes_of(size + 16), room_for(size)
            at = EDGE + target_at
            for grid, block in [(1, 32), (3, 128)]:
                target.fill_(0xA5)
                addresses = target.data_ptr() + at, source.data_ptr() + source_at
                copies.launch("copy_bytes", *addresses, size, alignment, grid=grid, block=block)
                expected = source[source_at : source_at + size]
                assert holds_only(target, at, expected), (source_at, target_at, size, grid)


def test_a_copy_goes_through_shared_memory(page: Page) -> None:
    copies = kernels("copies.cu")
    for size in [1, 100, 4096]:
        source, target = bytes_of(size), room_for(size)
        copies.launch("copy_shared", target.data_ptr() + EDGE, source, size, block=96)
        assert holds_only(target, EDGE, source)


def test_without_its_remainder_a_copy_is_whole_vectors(page: Page) -> None:
    source, target = bytes_of(100), room_for(100)
    kernels("copies.cu").launch("copy_vectors", target.data_ptr() + EDGE, source, 100, block=32)
    assert holds_only(target, EDGE, source[:96])


def test_bulk_copies_go_through_shared_memory(page: Page) -> None:
    copies = kernels("copies.cu")
    for size in [16, 48, 16384, 16400, 5 * 16384, 100_000]:
        source, target, error = bytes_of(size), room_for(size), number()
        copies.launch("copy_bulk", target.data_ptr() + EDGE, source, size, error, block=96)
        assert holds_only(target, EDGE, ~source), size
        assert int(error) == 0


@pytest.mark.parametrize("scope", [0, 1, 2])
def test_atomic_operations_lose_nothing(page: Page, scope: int) -> None:
    import torch

    words, rounds = torch.zeros(7, dtype=torch.int64, device="cuda"), 50
    # The scope of a block is enough within a block.
    grid, block = (1, 64) if scope == 2 else (8, 64)
    kernels("copies.cu").launch("count_all", words, rounds, scope, grid=grid, block=block)
    total = grid * block * rounds
    assert words.view(torch.int32)[0].item() == total
    assert words[1].item() == total
    assert words.view(torch.float32)[4].item() == total
    assert words.view(torch.float64)[3].item() == total / 2
    assert words[4:].tolist() == [total, 1, 1]


def test_data_before_a_released_store_is_seen_after_its_acquisition(page: Page) -> None:
    import torch

    words = torch.zeros(96, dtype=torch.int32, device="cuda")
    kernels("copies.cu").launch("publish", words[0:], words[32:], 2000, words[64:], grid=2)
    assert words[[0, 32, 64]].tolist() == [2000, 4000, 0]


@pytest.mark.parametrize("alignment", [4, 8, 16])
def test_a_channel_puts_and_gets(page: Page, alignment: int) -> None:
    copies = kernels("copies.cu")
    for size in SIZES:
        mine, theirs = bytes_of(size + 32), room_for(size)
        channel = memory_channel(bytes(40), theirs.data_ptr(), mine.data_ptr())
        copies.launch("put_bytes", channel, EDGE + 4, 8, size, alignment, grid=2, block=64)
        assert holds_only(theirs, EDGE + 4, mine[8 : 8 + size])
        mine, theirs = room_for(size), bytes_of(size + 32)
        channel = memory_channel(bytes(40), theirs.data_ptr(), mine.data_ptr())
        copies.launch("get_bytes", channel, EDGE + 4, 8, size, grid=2, block=64)
        assert holds_only(mine, EDGE + 4, theirs[8 : 8 + size])


def test_a_channel_reads_and_writes_elements_of_the_other_side(page: Page) -> None:
    import torch

    theirs = torch.arange(1000, dtype=torch.int32, device="cuda")
    kernels("copies.cu").launch(
        "read_and_write", memory_channel(bytes(40), theirs.data_ptr()), 1000, block=64
    )
    assert torch.equal(theirs, torch.arange(1000, dtype=torch.int32, device="cuda") * 2 + 1)


def packets_of(data: bytes, flag: int, width: int) -> bytes:
    """Data as packets; the last one is filled up with zeros."""
    payload = width // 2
    words = struct.unpack(f"<{-(-len(data) // payload) * payload // 4}I", data + bytes(-len(data) % payload))
    return b"".join(struct.pack("<II", word, flag) for word in words)


@pytest.mark.parametrize("width", [8, 16])
def test_packets_carry_every_size_from_and_to_every_address(page: Page, width: int) -> None:
    import torch

    copies = kernels("copies.cu")
    for source_at, target_at in OFFSETS:
        for size in SIZES[:-1]:
            source, target, error = bytes_of(size + 16), room_for(size), number()
            data = source[source_at : source_at + size]
            expected = packets_of(bytes(data.cpu().tolist()), 77, width)
            packets = room_for(len(expected))
            inside = packets.data_ptr() + EDGE
            copies.launch("to_packets", inside, data.data_ptr(), size, 77, width, grid=2, block=32)
            expected_packets = torch.tensor(list(expected), dtype=torch.uint8, device="cuda")
            assert holds_only(packets, EDGE, expected_packets), (source_at, size)
            at = EDGE + target_at
            copies.launch(
                "from_packets", target.data_ptr() + at, inside, size, 77, width, error, grid=2, block=32
            )
            assert holds_only(target, at, data), (target_at, size)
            assert int(error) == 0


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("size", [8, 1024, 100_004])
def test_packets_are_whole_while_they_are_written(page: Page, width: int, size: int) -> None:
    import torch

    half, rounds = 4, 300
    pairs = [Pair() for _ in range(half)]
    mine, theirs = bytes_of(size), torch.zeros(size, dtype=torch.uint8, device="cuda")
    room = torch.zeros(4 * (-(-size // 16) * 16), dtype=torch.uint8, device="cuda")
    writers = [memory_channel(pair.side(0, page), room.data_ptr(), mine.data_ptr()) for pair in pairs]
    readers = [memory_channel(pair.side(1, page), 0, theirs.data_ptr(), room.data_ptr()) for pair in pairs]
    tables = [
        torch.tensor(list(b"".join(side)), dtype=torch.uint8, device="cuda") for side in (writers, readers)
    ]
    error = number()
    (stream,) = streams(1)
    copies = kernels("copies.cu")
    copies.launch(
        "packet_rounds", *tables, size, rounds, width, 1, error, grid=2 * half, block=128, stream=stream
    )
    finish(stream)
    assert int(error) == 0
    assert torch.equal(mine, theirs)


def test_single_packets_and_the_old_names_do_the_same(page: Page) -> None:
    import torch

    wide, narrow, data = (torch.zeros(64, dtype=torch.int32, device="cuda") for _ in range(3))
    seen = torch.zeros(16, dtype=torch.int32, device="cuda")
    channel = memory_channel(bytes(40), packets=wide.data_ptr())
    kernels("copies.cu").launch("single_packets", wide, narrow, data, channel, seen, block=32)
    assert seen.tolist()[:13] == [1, 0, 1, 2, 4, 5, 1, 1, 11, 1, 0, 21, 22]


def test_blocks_meet_thousands_of_times_with_one_syncer_and_any_number_of_blocks(page: Page) -> None:
    import torch

    meetings = kernels("meetings.cu")
    words = torch.zeros(256, dtype=torch.int32, device="cuda")
    error = number()
    (stream,) = streams(1)
    first = 1
    for blocks in [1, 2, 3, 7, 32, 128, 5, 1, 64]:
        for threads in [1, 33, 256]:
            meetings.launch("meet", words, 400, first, error, grid=blocks, block=threads, stream=stream)
            first += 400
    finish(stream)
    assert int(error) == 0


def test_blocks_of_three_dimensions_meet(page: Page) -> None:
    import torch

    counter, error = torch.zeros(1, dtype=torch.int32, device="cuda"), number()
    kernels("meetings.cu").launch("meet_in_space", counter, 50, error, grid=16, block=(4, 3, 2))
    assert (int(counter), int(error)) == (800, 0)


def test_a_semaphore_admits_as_many_as_its_count(page: Page) -> None:
    inside, most, error = number(), number(), number()
    kernels("meetings.cu").launch("crowd", inside, most, 200, error, grid=32, block=32)
    assert (int(inside), int(error)) == (0, 0)
    assert 1 <= int(most) <= 2


def test_poll_counts_only_what_has_come(page: Page) -> None:
    import torch

    pair = Pair()
    seen = torch.zeros(8, dtype=torch.int64, device="cuda")
    kernels("meetings.cu").launch("counts", pair.side(0, page), pair.side(1, page), seen, block=32)
    assert seen.tolist() == [0, 0, 1, 1, 0, 2, 0, 2]


@pytest.mark.parametrize("grids", [1, 2])
def test_what_was_written_before_a_signal_is_seen_after_it(page: Page, grids: int) -> None:
    import torch

    words, rounds = 5000, 200
    pair, error = Pair(), number()
    mine, theirs = (torch.zeros(words, dtype=torch.int32, device="cuda") for _ in range(2))
    a = memory_channel(pair.side(0, page), theirs.data_ptr(), mine.data_ptr())
    b = memory_channel(pair.side(1, page), mine.data_ptr(), theirs.data_ptr())
    meetings, queues = kernels("meetings.cu"), streams(grids)
    for first, stream in enumerate(queues):
        meetings.launch(
            "messages", a, b, first, words, rounds, error, grid=3 - grids, block=256, stream=stream
        )
    finish(*queues)
    assert int(error) == 0


def round_trip_us(
    pair: Pair,
    page: Page,
    rounds: int,
    relaxed: bool,
    ranks: list[int],
    meet: Callable[[], None] | None = None,
) -> float | None:
    """Signals to and fro; the time of one round trip, if the side that begins is among these.

    With one rank the other is elsewhere, and they `meet` before either launches; with none both are blocks of one grid.
    """
    import torch

    took, error = torch.zeros(1, dtype=torch.int64, device="cuda"), number()
    meetings, queues = kernels("meetings.cu"), streams(max(len(ranks), 1))
    # Nothing is allocated or loaded from here on.
    if meet is not None:
        meet()
    sides = pair.side(0, page), pair.side(1, page)
    for rank, stream in zip(ranks or [0], queues):
        parameters = [*sides, rank, rounds, int(relaxed), took, error]
        meetings.launch("round_trips", *parameters, grid=1 if ranks else 2, block=32, stream=stream)
    finish(*queues)
    assert int(error) == 0
    return int(took) / rounds / 1e3 if ranks != [1] else None


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("grids", [1, 2])
def test_signals_go_to_and_fro(page: Page, grids: int, relaxed: bool) -> None:
    took = round_trip_us(Pair(), page, 2000, relaxed, [0, 1] if grids == 2 else [])
    print(
        f"\nround trip of {'relaxed ' if relaxed else ''}signals, {grids} grid(s) of one process: {took:.2f} us"
    )


def other_rank(words: torch.Tensor, rounds: int, mine: Any, theirs: Any) -> None:
    """The second rank of a test with two processes."""

    def meet() -> None:
        mine.set()
        assert theirs.wait(120), "the first rank is not ready"

    round_trip_us(Pair(words), Page(), rounds, False, [1], meet)


def test_signals_go_to_and_fro_between_processes(page: Page) -> None:
    import torch.multiprocessing

    # Without MPS each round trip may take two time slices.
    rounds = 200
    pair = Pair()
    context = torch.multiprocessing.get_context("spawn")
    mine, theirs = context.Event(), context.Event()

    def meet() -> None:
        mine.set()
        assert theirs.wait(120), "the other rank is not ready"

    process = context.Process(target=other_rank, args=(pair.words, rounds, theirs, mine), daemon=True)
    process.start()
    try:
        took = round_trip_us(pair, page, rounds, False, [0], meet)
        process.join(60)
        assert process.exitcode == 0, "the other rank ended well"
    finally:
        process.kill()
        process.join()
    print(f"\nround trip of signals between two processes: {took:.2f} us")


def test_loading_a_module_sets_its_abort_page(page: Page) -> None:
    import torch
    from ringfold import _native

    source = "#include <mscclpp/abort_device.hpp>\n"
    source += 'extern "C" __global__ void tell(unsigned long long* page) { *page = mscclppAbortPage; }'
    image = _native.cuda_compile(source, "tell.cu", _native.cuda_arch(0), {}, [], [], None)
    told = torch.zeros(1, dtype=torch.int64, device="cuda")
    module = _native.CudaModule(image, 0)
    parameters = struct.pack("<Q", told.data_ptr())
    module.function("tell").launch(parameters, (1, 1, 1), (1, 1, 1), 0, 0)
    assert int(told) != 0


class Wait:
    """A wait for what never comes: a kernel, its parameters, and what it says in the end."""

    def __init__(self, kernel: str, error: int, peer: int, block: int = 1) -> None:
        self.kernel, self.error, self.peer, self.block = kernel, error, peer, block

    def __repr__(self) -> str:
        return self.kernel

    def start(self, page: Page, spins: int, result: torch.Tensor, stream: torch.cuda.Stream) -> list[Any]:
        """Launches it, and gives what must live as long as it runs."""
        import torch

        memory = torch.zeros(4096, dtype=torch.uint8, device="cuda")
        pair, fifo = Pair(), HostFifo(4, page)
        semaphore = host_semaphore(memory.data_ptr(), memory.data_ptr() + 8, page, 5)
        parameters: dict[str, list[Any]] = {
            "wait_for_signal": [memory_channel(pair.side(0, page))],
            "wait_for_host": [port_channel(0, semaphore, fifo.handle, 0, 0)],
            "wait_for_room": [fifo.handle],
            "wait_for_flush": [port_channel(0, semaphore, fifo.handle, 0, 0)],
            "wait_for_packets": [
                memory_channel(pair.side(0, page), 0, memory.data_ptr(), memory.data_ptr() + 2048)
            ],
            "wait_for_packet": [memory],
            "wait_for_blocks": [],
            "wait_for_place": [],
            "wait_for_condition": [memory],
        }
        synchronize()
        kernels("spins.cu").launch(
            self.kernel, *parameters[self.kernel], spins, result, block=self.block, stream=stream
        )
        return [memory, pair, fifo]

    @property
    def says(self) -> int:
        """What it answers: the error, or how far it came."""
        return {"wait_for_room": 4, "wait_for_condition": 1}.get(self.kernel, self.error)


WAITS = [
    Wait("wait_for_signal", 1, 1),
    Wait("wait_for_host", 1, 5),
    Wait("wait_for_room", 2, -1),
    Wait("wait_for_flush", 3, 5),
    Wait("wait_for_packets", 4, 1, 64),
    Wait("wait_for_packet", 4, -1),
    Wait("wait_for_blocks", 5, -1, 64),
    Wait("wait_for_place", 5, -1),
    Wait("wait_for_condition", 1, -1),
]


@pytest.mark.parametrize("wait", WAITS, ids=repr)
def test_the_flag_of_the_host_ends_every_wait_at_once(page: Page, wait: Wait) -> None:
    result = number()
    (stream,) = streams(1)
    kept = wait.start(page, -1, result, stream)
    time.sleep(0.2)
    assert not stream.query(), "it waits"
    begun = time.monotonic()
    page.abort()
    finish(stream)
    took = time.monotonic() - begun
    assert int(result) == wait.says
    # The host knows why it ended the waits, and no kernel says anything else.
    assert (page.flag, page.error) == (1, 0)
    assert took < 1.0
    del kept


@pytest.mark.parametrize("wait", WAITS, ids=repr)
def test_every_wait_times_out_and_names_its_condition(page: Page, wait: Wait) -> None:
    page.reset(spin_seconds=0.05)
    result = number()
    (stream,) = streams(1)
    kept = wait.start(page, -1, result, stream)
    finish(stream)
    assert int(result) == wait.says
    assert (page.flag, page.error, page.peer) == (2, wait.error, wait.peer)
    assert 0.05 <= page.waited_seconds < 5
    del kept


@pytest.mark.parametrize("wait", WAITS, ids=repr)
@pytest.mark.parametrize("spins", [0, 1, 1000])
def test_a_number_of_spins_ends_every_wait(page: Page, wait: Wait, spins: int) -> None:
    result = number()
    (stream,) = streams(1)
    kept = wait.start(page, spins, result, stream)
    finish(stream)
    assert int(result) == wait.says
    assert (page.flag, page.error, page.peer) == (2, wait.error, wait.peer)
    del kept


def test_a_syncer_works_again_after_a_timeout(page: Page) -> None:
    spins = kernels("spins.cu")
    result = number()
    for _ in range(3):
        spins.launch("wait_for_blocks", 100, result, grid=7, block=64)
        assert int(result) == 5
        page.reset()
        spins.launch("meet_again", -1, result, grid=16, block=64)
        assert int(result) == 0
        assert page.flag == 0


def test_values_too_large_for_a_trigger_are_an_error_and_not_pushed(page: Page) -> None:
    large = 1 << 32
    cases = [((large, 0, 1), 0, 0, 0), ((0, large, 1), 0, 0, 0), ((0, 0, large), 0, 0, 0)]
    cases += [((0, 0, 1), 1024, 0, 0), ((0, 0, 1), 0, 512, 0), ((0, 0, 1), 0, 0, 512)]
    for place, semaphore_id, target, source in cases:
        page.reset()
        fifo, result = HostFifo(4, page), number()
        channel = port_channel(semaphore_id, host_semaphore(0, 0, page, 3), fifo.handle, target, source)
        synchronize()
        kernels("spins.cu").launch("ask_too_much", channel, *place, result)
        assert int(result) == 6
        assert (page.flag, page.error, page.peer) == (2, 6, 3)
        assert fifo.pop() is None


def test_a_failed_assertion_names_its_line_and_stops_no_device(page: Page) -> None:
    spins, result = kernels("spins.cu"), number()
    spins.launch("assert_something", 1, result)
    assert (int(result), page.flag) == (1, 0)
    spins.launch("assert_something", 2, result)
    assert int(result) == 1
    lines = (KERNELS / "spins.cu").read_text().splitlines()
    line = next(at for at, text in enumerate(lines, 1) if "MSCCLPP_ASSERT_DEVICE(" in text)
    assert (page.flag, page.error, page.line) == (2, 7, line)


@pytest.mark.parametrize("synced", [0, 1])
@pytest.mark.parametrize("size", [64, 50, 512])
def test_every_trigger_comes_out_once_and_in_the_order_of_its_thread(
    page: Page, size: int, synced: int
) -> None:
    fifo, result = HostFifo(size, page), number()
    threads, each = 64, 100
    popped: list[tuple[int, int]] = []

    def pop() -> None:
        while (trigger := fifo.pop()) is not None:
            popped.append(trigger)

    (stream,) = streams(1)
    kernels("spins.cu").launch(
        "push_all", fifo.handle, each, synced, result, grid=2, block=threads // 2, stream=stream
    )
    finish(stream, meanwhile=pop)
    pop()
    assert int(result) == 0
    assert len(popped) == threads * each
    for thread in range(threads):
        assert [snd for fst, snd in popped if fst == thread + 1] == list(range(each))


def test_a_port_channel_pushes_the_requested_triggers(page: Page) -> None:
    fifo, result = HostFifo(8, page), number()
    channel = port_channel(0x3FF, host_semaphore(0, 0, page, 0), fifo.handle, 0x155, 0x0AA)
    popped: list[tuple[int, int]] = []

    def pop() -> None:
        while (trigger := fifo.pop()) is not None:
            popped.append(trigger)

    (stream,) = streams(1)
    kernels("spins.cu").launch("ask", channel, result, stream=stream)
    finish(stream, meanwhile=pop)
    assert int(result) == 0

    def trigger(
        kind: int, target_at: int, source_at: int, size: int, memories: bool = True
    ) -> tuple[int, int]:
        ids = 0x0AA << 32 | 0x155 << 41 if memories else 0
        return size | source_at << 32, target_at | ids | kind << 50 | 0x3FF << 53

    assert popped == [
        trigger(1, 0x11111111, 0x22222222, 0x33333333),
        trigger(1, 0x44, 0x44, 0x55),
        trigger(2, 0, 0, 0, memories=False),
        trigger(3, 1, 2, 3),
        trigger(7, 4, 5, 6),
        trigger(4, 0, 0, 0, memories=False),
    ]


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-s"]))
