"""A device, the kernels of these tests, and handles as the host lays them out."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfold import _native

if TYPE_CHECKING:
    import torch

KERNELS = Path(__file__).parent / "kernels"

# Longer than anything takes, also under compute-sanitizer; kernels give up by themselves a little earlier.
DEADLINE_SECONDS = 90.0
SPIN_SECONDS = 60.0
# A page of waits: so many lines, each with a flag and a time.
LINES, LINE_WORDS = 32, 16

Parameter = "int | bytes | torch.Tensor | Page"


class Page:
    """The page through which a kernel and the host tell each other that something is wrong."""

    def __init__(self, spin_seconds: float = SPIN_SECONDS) -> None:
        import torch

        # Page-locked memory has the same address on the device.
        self._memory = torch.zeros((LINES, LINE_WORDS), dtype=torch.int64).pin_memory()
        self._lines = self._memory.numpy()
        self.address = self._memory.data_ptr()
        self.reset(spin_seconds)

    def reset(self, spin_seconds: float = SPIN_SECONDS) -> None:
        """Waits go on again, and so long."""
        self._lines[:] = 0
        self._lines[:, 1] = int(spin_seconds * 1e9)

    def abort(self) -> None:
        """Ends all waits."""
        self._lines[:, 0] = 1

    @property
    def flag(self) -> int:
        return int(self._lines[0, 0])

    @property
    def error(self) -> int:
        return int(self._lines[0, 2]) & 0xFF

    @property
    def peer(self) -> int:
        return int(self._lines[0, 2]) >> 32

    @property
    def line(self) -> int:
        return int(self._lines[0, 2]) >> 8 & 0xFFFFFF

    @property
    def waited_seconds(self) -> float:
        return int(self._lines[0, 3]) / 1e9


class Kernels:
    """The kernels of one file, loaded before any of them runs."""

    def __init__(self, file: str, page: Page) -> None:
        source = (KERNELS / file).read_text()
        image = _native.cuda_compile(source, file, _native.cuda_arch(0), {}, [], ["-std=c++17"], None)
        self._module = _native.CudaModule(image, 0)
        names = [line.split("(")[0].split()[-1] for line in source.splitlines() if "__global__ void" in line]
        self._functions = {name: self._module.function(name) for name in names}
        self.launch("use_page", page, stream=0)
        synchronize()

    def launch(
        self,
        kernel: str,
        *parameters: Any,
        grid: int = 1,
        block: int | tuple[int, int, int] = 1,
        stream: int | torch.cuda.Stream = 0,
    ) -> None:
        """Launches a kernel. Whole numbers and addresses are 64 bits wide, handles are bytes."""
        shape = block if isinstance(block, tuple) else (block, 1, 1)
        handle = stream if isinstance(stream, int) else stream.cuda_stream
        packed = b"".join(_packed(parameter) for parameter in parameters)
        self._functions[kernel].launch(packed, (grid, 1, 1), shape, 0, handle)


def _packed(parameter: Any) -> bytes:
    if isinstance(parameter, bytes):
        return parameter
    if isinstance(parameter, int):
        return struct.pack("<q" if parameter < 0 else "<Q", parameter)
    if isinstance(parameter, Page):
        return struct.pack("<Q", parameter.address)
    return struct.pack("<Q", parameter.data_ptr())


@cache
def process_page() -> Page:
    """The page of waits that have no handle."""
    return Page()


@cache
def kernels(file: str) -> Kernels:
    """The kernels of a file of this directory's `kernels`."""
    return Kernels(file, process_page())


def synchronize() -> None:
    """Waits until memory that was just made holds what it should."""
    import torch

    torch.cuda.synchronize()


def finish(
    *streams: torch.cuda.Stream, pages: tuple[Page, ...] = (), meanwhile: Callable[[], None] | None = None
) -> None:
    """Waits until all streams are idle. If one is not in time, its waits are ended and the test fails."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not all(stream.query() for stream in streams):
        if meanwhile is not None:
            meanwhile()
        if time.monotonic() > deadline:
            for page in (*pages, process_page()):
                page.abort()
            synchronize()
            raise AssertionError("a kernel did not end in time")
        time.sleep(0)


def host_semaphore(inbound: int, expected: int, page: Page, peer: int) -> bytes:
    """The handle of a semaphore that the host signals."""
    return struct.pack("<QQQii", inbound, expected, page.address, peer, 0)


def memory_semaphore(inbound: int, remote: int, expected: int, page: Page, peer: int) -> bytes:
    """The handle of a semaphore that kernels signal."""
    return struct.pack("<QQQQii", inbound, remote, expected, page.address, peer, 0)


def memory_channel(semaphore: bytes, target: int = 0, source: int = 0, packets: int = 0) -> bytes:
    """The handle of a memory channel."""
    return semaphore + struct.pack("<QQQ", target, source, packets)


def fifo_handle(triggers: int, head: int, tail: int, tail_cache: int, page: Page, size: int) -> bytes:
    """The handle of a FIFO, whose slots are the next power of two."""
    bits = (size - 1).bit_length()
    return struct.pack("<QQQQQii", triggers, head, tail, tail_cache, page.address, size, bits)


def port_channel(semaphore_id: int, semaphore: bytes, fifo: bytes, target: int, source: int) -> bytes:
    """The handle of a port channel."""
    return struct.pack("<II", semaphore_id, 0) + semaphore + fifo + struct.pack("<II", target, source)


class Pair:
    """The words of two semaphores that signal to each other, in device memory."""

    STRIDE = 16

    def __init__(self, words: torch.Tensor | None = None) -> None:
        import torch

        self.words = (
            words if words is not None else torch.zeros(4 * self.STRIDE, dtype=torch.int64, device="cuda")
        )

    def _word(self, number: int) -> int:
        return self.words.data_ptr() + 8 * self.STRIDE * number

    def side(self, rank: int, page: Page) -> bytes:
        """The handle of one side."""
        other = 1 - rank
        return memory_semaphore(self._word(rank), self._word(other), self._word(2 + rank), page, other)


class HostFifo:
    """A FIFO whose host is this test."""

    def __init__(self, size: int, page: Page) -> None:
        import torch

        self._slot_count = 1 << (size - 1).bit_length()
        self._triggers = torch.zeros(2 * self._slot_count, dtype=torch.int64).pin_memory()
        self._tail = torch.zeros(1, dtype=torch.int64).pin_memory()
        self._device = torch.zeros(2, dtype=torch.int64, device="cuda")
        self._slots = self._triggers.numpy().view("uint64")
        self._popped = self._tail.numpy()
        head, tail_cache = self._device.data_ptr(), self._device.data_ptr() + 8
        self.handle = fifo_handle(
            self._triggers.data_ptr(), head, self._tail.data_ptr(), tail_cache, page, size
        )

    def pop(self) -> tuple[int, int] | None:
        """The oldest trigger without the FIFO's own bit, if there is one."""
        popped = int(self._popped[0])
        at, lap = 2 * (popped % self._slot_count), popped // self._slot_count
        snd = int(self._slots[at + 1])
        if snd >> 63 != (lap + 1) % 2:
            return None
        fst = int(self._slots[at])
        self._popped[0] = popped + 1
        return fst, snd & ((1 << 63) - 1)
