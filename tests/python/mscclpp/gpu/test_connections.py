"""Connections between the memories of a GPU that two processes have, through CUDA IPC and over TCP.

Torch and a device take seconds to start, so a pair of processes plays several scenes, one after the other. All of them
are in processes of their own: one that hangs says where, and is gone afterwards.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
import test_port_native
from ringfold import _native
from ringfold._error import PortError
from test_port_native import ETHERNET, PROMPT, SHARED_MEMORY, Memory, kept
from world import World, rank

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.usefixtures("needs_gpu", "warm_gpu")

# For one wait, and for a pair of processes with all its scenes.
DEADLINE = 20.0
PAIR_DEADLINE = 60.0

CUDA_IPC = 1
NBYTES = 1 << 20
# Between the beginnings of two tensors of one allocation.
GAP = 512


# The scene that is played: what one has left for the other is not to be found in the next.
scene = "only"


def play(transport: int, names: list[str]) -> None:
    """Plays scenes: functions of this module that take the transport."""
    global scene
    for scene in names:
        begun = time.monotonic()
        print(f"--- {scene}", flush=True)
        globals()[scene](transport)
        together("over")
        print(f"    took {time.monotonic() - begun:.2f} s", flush=True)


def tell(name: str, record: bytes) -> None:
    """Leaves something for the other rank."""
    test_port_native.tell(f"{scene}-{name}", record)


def hear(name: str, of: int) -> bytes:
    """What the other rank has left."""
    return test_port_native.hear(f"{scene}-{name}", of)


def connected(transport: int) -> tuple[_native.Port, dict[int, _native.PortConnection]]:
    """A port, and its connection with the other rank."""
    return test_port_native.connected(transport, f"{scene}-offer")


def cuda_tensor(nbytes: int = NBYTES) -> torch.Tensor:
    """Zeros in the midst of an allocation of torch's."""
    pytest.importorskip("torch", reason="torch brings the memory of these tests")
    import torch

    block = torch.zeros(nbytes + 3 * GAP, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    return block[GAP : GAP + nbytes]


def pattern(nbytes: int, seed: int) -> Any:
    import torch

    return ((torch.arange(nbytes, dtype=torch.int64) * 7 + seed * 13) % 251).to(torch.uint8)


def register(
    port: _native.Port, tensor: Any, transports: int = CUDA_IPC | ETHERNET | SHARED_MEMORY
) -> _native.PortMemory:
    memory = port.register(
        tensor.data_ptr(), tensor.numel() * tensor.element_size(), transports, None, tensor
    )
    kept.append(memory)
    return memory


def exchanged(port: _native.Port, tensor: Any, name: str) -> _native.PortMemory:
    """Registers memory, and gives the other rank's."""
    tell(name, register(port, tensor).serialize())
    return port.remote(hear(name, 1 - rank()))


def word(tensor: Any, offset: int) -> int:
    import torch

    return int(tensor[offset : offset + 8].view(torch.int64).item())


def await_word(tensor: Any, offset: int, value: int) -> None:
    until = time.monotonic() + DEADLINE
    while word(tensor, offset) != value:
        assert time.monotonic() < until, f"word {offset} is {word(tensor, offset)}, not {value}"
        time.sleep(0.001)


def together(name: str) -> None:
    """Both ranks have come to this."""
    tell(name, b"")
    hear(name, 1 - rank())


# --- writes and words --------------------------------------------------------------------------------------------------


def write_and_signal(transport: int) -> None:
    import torch

    port, connections = connected(transport)
    connection = connections[1 - rank()]
    target, bell, source = cuda_tensor(), cuda_tensor(4096), cuda_tensor()
    there, bell_there = exchanged(port, target, "target"), exchanged(port, bell, "bell")
    mine = register(port, source)
    assert mine.is_device and there.is_device and there.nbytes == NBYTES
    assert there.address != 0, "memory that was registered for CUDA IPC is open here, too"
    for turn in range(1, 11):
        source.copy_(pattern(NBYTES, turn + rank()))
        torch.cuda.synchronize()
        connection.write(there, 100, mine, 8, NBYTES - 108)
        connection.update(bell_there, 8, turn)
        await_word(bell, 8, turn)
        got = target.cpu()
        assert torch.equal(got[100 : NBYTES - 8], pattern(NBYTES, turn + 1 - rank())[8 : NBYTES - 100])
        assert not got[:100].any() and not got[-8:].any()
        connection.flush(DEADLINE)
        connection.update(bell_there, 16, turn)
        await_word(bell, 16, turn)
    together("done")


def write_between_host_and_device(transport: int) -> None:
    port, connections = connected(transport)
    connection = connections[1 - rank()]
    target = cuda_tensor()
    there = exchanged(port, target, "target")
    source = Memory(NBYTES)
    source.map[:] = bytes(pattern(NBYTES, rank()).numpy())
    mine = source.register(port)
    connection.write(there, 0, mine, 0, NBYTES)
    connection.flush(DEADLINE)
    together("written")
    assert bytes(target.cpu().numpy()) == bytes(pattern(NBYTES, 1 - rank()).numpy())
    if transport == CUDA_IPC:
        together("done")
        return
    # And from a device into memory of the host, with a word of the host's behind it.
    inbox, outbox = Memory(NBYTES), cuda_tensor()
    outbox.copy_(pattern(NBYTES, 5 + rank()))
    kept.append(inbox.register(port))
    tell("inbox", kept[-1].serialize())
    there, mine = port.remote(hear("inbox", 1 - rank())), register(port, outbox)
    import torch

    torch.cuda.synchronize()
    connection.write(there, 64, mine, 64, NBYTES - 64)
    connection.update(there, 0, 77)
    inbox.await_word(0, 77)
    assert inbox.map[64:] == bytes(pattern(NBYTES, 5 + 1 - rank()).numpy())[64:]
    together("done")


def tell_data_and_a_word_of_the_host(transport: int) -> None:
    # The data goes to the GPU by a stream, and the word, which lies in memory of the host, must not overtake it.
    import torch

    port, connections = connected(transport)
    nbytes = 8 << 20
    target, bell = cuda_tensor(nbytes), Memory(64)
    there = exchanged(port, target, "target")
    kept.append(bell.register(port))
    tell("bell", kept[-1].serialize())
    bell_there = port.remote(hear("bell", 1 - rank()))
    source = cuda_tensor(nbytes)
    mine = register(port, source)
    for turn in range(1, 21):
        source.fill_(turn)
        torch.cuda.synchronize()
        connections[1 - rank()].write(there, 0, mine, 0, nbytes)
        connections[1 - rank()].update(bell_there, 0, turn)
        bell.await_word(0, turn)
        assert int(target.min().item()) == turn == int(target.max().item())
        connections[1 - rank()].update(bell_there, 8, turn)
        bell.await_word(8, turn)
    together("done")


def open_twice(transport: int) -> None:
    port, connections = connected(transport)
    block = cuda_tensor(4 * NBYTES)
    parts = [block[:NBYTES], block[NBYTES // 2 : 2 * NBYTES], block[3 * NBYTES :], block]
    for number, part in enumerate(parts):
        tell(f"part{number}", register(port, part).serialize())
    theirs = [port.remote(hear(f"part{number}", 1 - rank())) for number in range(4)]
    again = port.remote(hear("part0", 1 - rank()))
    # All lie in one allocation, which is open once.
    assert theirs[0].address == again.address == theirs[3].address
    assert theirs[1].address - theirs[0].address == NBYTES // 2
    assert theirs[2].address - theirs[0].address == 3 * NBYTES
    connection = connections[1 - rank()]
    for number, memory in enumerate(theirs[:3]):
        connection.update(memory, 8, number + 1)
    connection.flush(DEADLINE)
    del again, theirs[1]
    connection.update(theirs[0], 16, 9)
    connection.flush(DEADLINE)
    together("written")
    assert [word(part, 8) for part in parts[:3]] == [1, 2, 3] and word(block, 16) == 9
    together("done")


def write_cupy_memory(transport: int) -> None:
    if importlib.util.find_spec("cupy") is None:
        print("    cupy is not installed", flush=True)
        return
    cupy = importlib.import_module("cupy")
    port, connections = connected(transport)
    # Cupy's pool gives parts of larger allocations.
    pool = [cupy.zeros(100 + number, dtype=cupy.uint8) for number in range(8)]
    cupy.cuda.Device(0).synchronize()
    for number, array in enumerate(pool):
        memory = port.register(array.data.ptr, array.nbytes, CUDA_IPC, None, array)
        kept.append(memory)
        tell(f"array{number}", memory.serialize())
    source = cupy.arange(100, dtype=cupy.uint8)
    cupy.cuda.Device(0).synchronize()
    mine = port.register(source.data.ptr, 100, CUDA_IPC, None, source)
    for number in range(8):
        there = port.remote(hear(f"array{number}", 1 - rank()))
        connections[1 - rank()].write(there, number, mine, 0, 100)
    connections[1 - rank()].flush(DEADLINE)
    together("written")
    for number, array in enumerate(pool):
        assert cupy.asnumpy(array)[number : number + 100].tolist() == list(range(100))
    together("done")


def refuse_words_of_the_host(transport: int) -> None:
    # A port that is connected with itself.
    port = _native.Port("rank 0", "127.0.0.1")
    offer = port.offer(transport)
    connection = port.connect(offer, offer.record, 0, PROMPT)
    memory = Memory(4096)
    mine = port.register(memory.address, 4096, transport, None, memory)
    with pytest.raises(PortError) as error:
        connection.update(mine, 0, 1)
    assert error.value.kind == "unsupported"
    tensor = cuda_tensor()
    there = register(port, tensor)
    connection.update(there, 8, 4)
    connection.flush(PROMPT)
    assert word(tensor, 8) == 4


# --- beside kernels ----------------------------------------------------------------------------------------------------

SPIN = r"""
extern "C" __global__ void spin(volatile unsigned int* stop, unsigned long long most) {
  unsigned long long begun, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (*stop == 0 && now - begun < most);
}
"""


def write_while_a_kernel_spins(transport: int) -> None:
    import torch

    port, connections = connected(transport)
    target = cuda_tensor()
    there = exchanged(port, target, "target")
    source = cuda_tensor()
    source.copy_(pattern(NBYTES, rank()))
    mine = register(port, source)
    image = _native.cuda_compile(SPIN, "spin.cu", _native.cuda_arch(0), {}, [], [], None)
    kernel = _native.CudaModule(image, 0).function("spin")
    stop = torch.zeros(16, dtype=torch.int32).pin_memory()
    connections[1 - rank()].flush(DEADLINE)
    torch.cuda.synchronize()
    together("ready")
    # On the legacy default stream, which all ordinary streams wait for.
    kernel.launch(struct.pack("<QQ", stop.data_ptr(), int(15e9)), (1, 1, 1), (1, 1, 1), 0, 0)
    cuda: Any = torch.cuda
    done = cuda.Event()
    done.record(cuda.default_stream())
    try:
        for _ in range(5):
            connections[1 - rank()].write(there, 0, mine, 0, NBYTES)
            connections[1 - rank()].update(there, 8, 3)
            connections[1 - rank()].flush(DEADLINE)
        assert not done.query(), "the kernel has not spun"
        # The other rank's kernel spins as well: nothing of what was written needed its end.
        together("written")
        assert not done.query()
    finally:
        stop[0] = 1
    torch.cuda.synchronize()
    together("stopped")
    assert word(target, 8) == 3
    assert torch.equal(target.cpu()[16:], pattern(NBYTES, 1 - rank())[16:])
    together("done")


def let_go_while_a_kernel_spins(transport: int) -> None:
    # The driver may not free or close anything before the kernel ends: only its own thread waits for that.
    import torch

    port, connections = connected(transport)
    mine, target = cuda_tensor(), cuda_tensor()
    # So large that it has an allocation of its own, which is closed with it.
    there, again = exchanged(port, target, "target"), exchanged(port, cuda_tensor(32 * NBYTES), "more")
    source = register(port, mine)
    image = _native.cuda_compile(SPIN, "spin.cu", _native.cuda_arch(0), {}, [], [], None)
    kernel = _native.CudaModule(image, 0).function("spin")
    stop = torch.zeros(16, dtype=torch.int32).pin_memory()
    torch.cuda.synchronize()
    together("ready")
    kernel.launch(struct.pack("<QQ", stop.data_ptr(), int(15e9)), (1, 1, 1), (1, 1, 1), 0, 0)
    try:
        begun = time.monotonic()
        del again
        connections[1 - rank()].write(there, 64, source, 0, 4096)
        connections[1 - rank()].update(there, 8, 3)
        connections[1 - rank()].flush(DEADLINE)
        assert time.monotonic() - begun < PROMPT
        together("written")
    finally:
        stop[0] = 1
    torch.cuda.synchronize()
    assert word(target, 8) == 3
    together("done")


WRITES = ["write_and_signal", "write_between_host_and_device"]
SPINS = ["write_while_a_kernel_spins", "let_go_while_a_kernel_spins"]
SCENES = {
    CUDA_IPC: [*WRITES, "open_twice", "write_cupy_memory", "refuse_words_of_the_host", *SPINS],
    ETHERNET: [*WRITES, "tell_data_and_a_word_of_the_host", *SPINS],
    SHARED_MEMORY: WRITES,
}


@pytest.mark.parametrize("transport", SCENES, ids=["CudaIpc", "Ethernet", "SharedMemory"])
def test_what_two_processes_write_into_gpu_memory_arrives_in_order_also_while_kernels_spin(
    world: World, transport: int
) -> None:
    world.run(2, play, transport, SCENES[transport], deadline=PAIR_DEADLINE)


# --- ends --------------------------------------------------------------------------------------------------------------


def leave_at_once() -> None:
    port, connections = connected(CUDA_IPC)
    target = cuda_tensor()
    there = exchanged(port, target, "target")
    source = cuda_tensor()
    source.fill_(6)
    import torch

    torch.cuda.synchronize()
    mine = register(port, source)
    if rank() == 0:
        connections[1].write(there, 0, mine, 0, NBYTES)
        connections[1].update(there, 0, 5)
        # Everything is dropped, in an unusual order.
        kept.clear()
        del port, mine, source, target, there
        connections.clear()
        return
    await_word(target, 0, 5)
    assert int(target[8:].min().item()) == 6
    until = time.monotonic() + PROMPT
    while not connections[0].is_over:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert port.failure() is None


def test_what_was_written_arrives_although_its_rank_has_left(world: World) -> None:
    world.run(2, leave_at_once, deadline=PAIR_DEADLINE)


# The last one: MPS may be shaken by a client that is killed.


def wait_for_the_dead() -> tuple[str, str, float]:
    port, connections = connected(CUDA_IPC)
    target = cuda_tensor()
    there = exchanged(port, target, "target")
    source = cuda_tensor()
    mine = register(port, source)
    print("ready", flush=True)
    hear("killed", 0)
    begun = time.monotonic()
    while True:
        try:
            connections[0].write(there, 0, mine, 0, NBYTES)
            connections[0].flush(DEADLINE)
        except PortError as error:
            assert port.failure() is not None
            return error.kind, str(error), time.monotonic() - begun
        assert time.monotonic() - begun < PROMPT
        time.sleep(0.001)


def test_a_killed_rank_is_named_at_once(world: World) -> None:
    running = world.start(2, wait_for_the_dead)
    for child in running.children:
        child.wait_for("ready", 2 * DEADLINE)
    os.kill(running.children[0].pid, signal.SIGKILL)
    (running.outcomes[0].parent / "only-killed-of0").write_bytes(b"")
    running.children, running.outcomes = running.children[1:], running.outcomes[1:]
    [(kind, words, took)] = running.results(PAIR_DEADLINE)
    assert kind == "lost" and "rank 0" in words and took < PROMPT
