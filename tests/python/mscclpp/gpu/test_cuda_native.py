"""Memory, code and the sharing of memory on a GPU: what the rest of mscclpp stands on."""

from __future__ import annotations

import gc
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from ringfold import _native
from ringfold._error import PortError
from world import World, join, rank

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.usefixtures("needs_gpu")

MIB = 1 << 20

SOURCE = r"""
extern "C" __global__ void fill(int* at, int value, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) at[i] = value + i;
}

struct Three { unsigned long long a, b, c; };
extern "C" __global__ void take(int* out, int small, Three three, char last) {
  out[0] = small + int(three.a + three.b + three.c) + last;
}

// The block's threads write shared memory from the end, and one adds it up.
extern "C" __global__ void share(int* out, int words) {
  extern __shared__ int shared[];
  for (int i = threadIdx.x; i < words; i += blockDim.x) shared[words - 1 - i] = i;
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < words; ++i) sum += shared[i] == words - 1 - i;
    out[0] = sum;
  }
}

// Waits for a word of the host, for ten seconds at most.
extern "C" __global__ void spin(volatile int* word, int* out) {
  unsigned long long began, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (*word == 0 && now - began < 10000000000ull);
  out[0] = *word;
}
"""


class View:
    """Bytes at an address, for torch and cupy."""

    def __init__(self, address: int, nbytes: int, kind: str = "|u1", itemsize: int = 1) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes // itemsize,),
            "typestr": kind,
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def seen(address: int, nbytes: int) -> torch.Tensor:
    """Bytes at an address, as a tensor."""
    import torch

    return torch.as_tensor(View(address, nbytes), device="cuda")


def module(source: str = SOURCE, arch: str | None = None) -> _native.CudaModule:
    return _native.CudaModule(
        _native.cuda_compile(source, "test.cu", arch or _native.cuda_arch(0), {}, [], []), 0
    )


@pytest.fixture(scope="module")
def kernels(needs_gpu: None) -> _native.CudaModule:
    return module()


@pytest.fixture
def torch_cuda(needs_gpu: None) -> Any:
    return pytest.importorskip("torch")


# --- devices


def test_the_device_is_the_one_that_torch_knows(torch_cuda: Any) -> None:
    major, minor = torch_cuda.cuda.get_device_capability(0)
    assert _native.cuda_arch(0) == f"sm_{major}{minor}"
    assert _native.cuda_multiprocessors(0) == torch_cuda.cuda.get_device_properties(0).multi_processor_count
    assert _native.cuda_count() >= torch_cuda.cuda.device_count() > 0
    torch_cuda.zeros(1, device="cuda:0")
    assert _native.cuda_current() == 0


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(PortError, match="unknown CUDA device 99") as caught:
        _native.CudaMemory(8, 99)
    assert caught.value.kind == "argument"


def test_the_device_of_an_address_is_known(torch_cuda: Any) -> None:
    tensor = torch_cuda.zeros(1000, device="cuda:0")
    assert _native.cuda_device_of(tensor.data_ptr() + 100) == 0
    assert _native.cuda_device_of(torch_cuda.zeros(8).data_ptr()) is None
    assert _native.cuda_device_of(torch_cuda.zeros(8).pin_memory().data_ptr()) is None


# --- memory


def test_new_memory_is_zero_even_where_something_was_before(torch_cuda: Any) -> None:
    for _ in range(4):
        memory = _native.CudaMemory(3 * MIB + 5, 0)
        tensor = torch_cuda.from_dlpack(memory)
        assert tensor.shape == (3 * MIB + 5,) and tensor.dtype == torch_cuda.uint8
        assert int(tensor.count_nonzero()) == 0
        tensor.fill_(255)
        torch_cuda.cuda.synchronize()
        del tensor, memory


def test_torch_sees_the_memory_by_dlpack_and_by_the_array_interface(torch_cuda: Any) -> None:
    memory = _native.CudaMemory(4096, 0)
    by_dlpack = torch_cuda.from_dlpack(memory)
    by_interface = torch_cuda.as_tensor(memory, device="cuda")
    assert by_dlpack.data_ptr() == by_interface.data_ptr() == memory.address
    by_dlpack[7] = 9
    assert int(by_interface[7]) == 9
    assert memory.__dlpack_device__() == (2, 0)
    assert memory.nbytes == 4096 and memory.ordinal == 0


def test_cupy_sees_the_memory_by_dlpack_and_by_the_array_interface() -> None:
    cupy = pytest.importorskip("cupy")
    memory = _native.CudaMemory(4096, 0)
    by_dlpack, by_interface = cupy.from_dlpack(memory), cupy.asarray(memory)
    assert by_dlpack.data.ptr == by_interface.data.ptr == memory.address
    by_dlpack[7] = 9
    assert int(by_interface[7]) == 9


def test_arrays_keep_the_memory_and_the_last_one_frees_it(torch_cuda: Any) -> None:
    torch_cuda.cuda.synchronize()
    free_before, _ = torch_cuda.cuda.mem_get_info()
    memory = _native.CudaMemory(512 * MIB, 0)
    tensor = torch_cuda.from_dlpack(memory)
    part = tensor[5:9]
    del memory, tensor
    gc.collect()
    part.fill_(3)
    assert part.tolist() == [3] * 4
    assert torch_cuda.cuda.mem_get_info()[0] <= free_before - 512 * MIB
    del part
    gc.collect()
    assert torch_cuda.cuda.mem_get_info()[0] > free_before - 256 * MIB


def test_an_unused_capsule_frees_its_memory(torch_cuda: Any) -> None:
    free_before, _ = torch_cuda.cuda.mem_get_info()
    for _ in range(4):
        _native.CudaMemory(256 * MIB, 0).__dlpack__()
    gc.collect()
    assert torch_cuda.cuda.mem_get_info()[0] > free_before - 256 * MIB


def test_out_of_memory_is_an_error(torch_cuda: Any) -> None:
    with pytest.raises(PortError, match="out of memory on CUDA device .*bytes") as caught:
        _native.CudaMemory(1 << 50, 0)
    assert (caught.value.kind, caught.value.code) == ("cuda", 2)
    assert _native.CudaMemory(8, 0).nbytes == 8, "and nothing is broken"


def test_copies_and_empty_memory_are_rejected() -> None:
    memory = _native.CudaMemory(64, 0)
    with pytest.raises(BufferError):
        memory.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        memory.__dlpack__(dl_device=(1, 0))
    with pytest.raises(PortError):
        _native.CudaMemory(0, 0)


# --- code


def test_parameters_reach_a_kernel_as_they_lie_in_memory(
    kernels: _native.CudaModule, torch_cuda: Any
) -> None:
    out = torch_cuda.zeros(1, dtype=torch_cuda.int32, device="cuda")
    take = kernels.function("take")
    assert take.name == "take"
    params = struct.pack("<Qi4xQQQb", out.data_ptr(), 1000, 100, 20, 3, 4)
    assert take.attributes["parameter_bytes"] in (-1, len(params))
    take.launch(params, (1, 1, 1), (1, 1, 1), 0, torch_cuda.cuda.current_stream().cuda_stream)
    assert out.item() == 1127
    # Padding at the end does no harm.
    take.launch(params + bytes(7), (1, 1, 1), (1, 1, 1), 0, 0)
    torch_cuda.cuda.synchronize()
    assert out.item() == 1127


def test_too_few_parameters_are_an_error(kernels: _native.CudaModule) -> None:
    take = kernels.function("take")
    if take.attributes["parameter_bytes"] < 0:
        pytest.skip("this driver does not tell how many parameters a kernel has")
    with pytest.raises(PortError, match="kernel take expects 41 bytes of parameters, got 8"):
        take.launch(bytes(8), (1, 1, 1), (1, 1, 1), 0, 0)


def test_kernels_run_on_the_stream_that_is_named(kernels: _native.CudaModule, torch_cuda: Any) -> None:
    stream = torch_cuda.cuda.Stream()
    out = torch_cuda.zeros(100_000, dtype=torch_cuda.int32, device="cuda")
    torch_cuda.cuda.synchronize()
    params = struct.pack("<Qii", out.data_ptr(), 7, out.numel())
    kernels.function("fill").launch(params, (8, 1, 1), (256, 1, 1), 0, stream.cuda_stream)
    stream.synchronize()
    assert torch_cuda.equal(out.cpu(), torch_cuda.arange(7, 100_007, dtype=torch_cuda.int32))


@pytest.mark.parametrize("kib", [0, 16, 48, 64, 200])
def test_kernels_have_all_the_shared_memory_that_they_ask_for(
    kib: int, kernels: _native.CudaModule, torch_cuda: Any
) -> None:
    most = torch_cuda.cuda.get_device_properties(0).shared_memory_per_block_optin
    if kib * 1024 > most:
        pytest.skip(f"this device has {most} bytes")
    out = torch_cuda.full((1,), -1, dtype=torch_cuda.int32, device="cuda")
    torch_cuda.cuda.synchronize()
    words = kib * 256
    share = kernels.function("share")
    share.launch(struct.pack("<Qi", out.data_ptr(), words), (1, 1, 1), (128, 1, 1), 4 * words, 0)
    torch_cuda.cuda.synchronize()
    assert out.item() == words
    assert share.max_active_blocks(128, 4 * words) >= 1


def test_too_much_shared_memory_is_an_error(kernels: _native.CudaModule) -> None:
    with pytest.raises(PortError, match="kernel share: 1048576 bytes of dynamic shared memory"):
        kernels.function("share").launch(bytes(12), (1, 1, 1), (1, 1, 1), MIB, 0)


def test_an_invalid_launch_names_the_kernel(kernels: _native.CudaModule) -> None:
    with pytest.raises(
        PortError, match="launching a kernel: .*fill, 1 x 1 x 1 blocks of 4096 x 1 x 1 threads"
    ) as caught:
        kernels.function("fill").launch(bytes(16), (1, 1, 1), (4096, 1, 1), 0, 0)
    assert caught.value.kind == "cuda" and caught.value.code != 0


def test_an_unknown_kernel_is_an_error(kernels: _native.CudaModule) -> None:
    with pytest.raises(PortError, match='unknown kernel nothing.*extern "C"'):
        kernels.function("nothing")


def test_ptx_is_loaded_as_well(torch_cuda: Any) -> None:
    major, minor = torch_cuda.cuda.get_device_capability(0)
    out = torch_cuda.zeros(4, dtype=torch_cuda.int32, device="cuda")
    torch_cuda.cuda.synchronize()
    fill = module(arch=f"compute_{major}{minor}").function("fill")
    fill.launch(struct.pack("<Qii", out.data_ptr(), 1, 4), (1, 1, 1), (32, 1, 1), 0, 0)
    torch_cuda.cuda.synchronize()
    assert out.tolist() == [1, 2, 3, 4]


def test_invalid_code_is_an_error() -> None:
    for image in (b"nothing of the sort", b".version 8.0\n.target sm_80\n.address_size 64\nwhat is this\n"):
        with pytest.raises(PortError, match="loading code into a CUDA device") as caught:
            _native.CudaModule(image, 0)
        assert caught.value.kind == "cuda"
    assert "what" in str(caught.value) or "ptxas" in str(caught.value) or "parsing" in str(caught.value)


def test_functions_outlive_their_module(torch_cuda: Any) -> None:
    fill = module().function("fill")
    gc.collect()
    out = torch_cuda.zeros(2, dtype=torch_cuda.int32, device="cuda")
    torch_cuda.cuda.synchronize()
    fill.launch(struct.pack("<Qii", out.data_ptr(), 5, 2), (1, 1, 1), (2, 1, 1), 0, 0)
    torch_cuda.cuda.synchronize()
    assert out.tolist() == [5, 6]


def test_every_module_with_our_headers_knows_the_page_that_ends_its_waits(torch_cuda: Any) -> None:
    source = (
        "#include <mscclpp/packet_device.hpp>\n"
        'extern "C" __global__ void page(unsigned long long* out) { out[0] = mscclppAbortPage; }\n'
    )
    out = torch_cuda.zeros(2, dtype=torch_cuda.int64, device="cuda")
    torch_cuda.cuda.synchronize()
    for place in range(2):
        params = struct.pack("<Q", out.data_ptr() + 8 * place)
        module(source).function("page").launch(params, (1, 1, 1), (1, 1, 1), 0, 0)
    torch_cuda.cuda.synchronize()
    first, second = out.tolist()
    assert first == second != 0


# --- captures


def test_a_launch_on_a_stream_that_is_captured_becomes_part_of_the_graph(
    kernels: _native.CudaModule, torch_cuda: Any
) -> None:
    out = torch_cuda.zeros(1000, dtype=torch_cuda.int32, device="cuda")
    fill = kernels.function("fill")
    share = kernels.function("share")
    graph, stream = torch_cuda.cuda.CUDAGraph(), torch_cuda.cuda.Stream()
    with torch_cuda.cuda.graph(graph, stream=stream):
        number = torch_cuda.cuda.current_stream().cuda_stream
        fill.launch(struct.pack("<Qii", out.data_ptr(), 3, 1000), (2, 1, 1), (128, 1, 1), 0, number)
        # The limit of shared memory is raised in the midst of it.
        share.launch(struct.pack("<Qi", out.data_ptr() + 4, 25_000), (1, 1, 1), (128, 1, 1), 100_000, number)
    torch_cuda.cuda.synchronize()
    assert int(out.count_nonzero()) == 0, "nothing has run yet"
    for _ in range(2):
        out.zero_()
        graph.replay()
        torch_cuda.cuda.synchronize()
        assert out.tolist()[:3] == [3, 25_000, 5]


def test_our_calls_disturb_no_capture_of_this_or_another_thread(
    kernels: _native.CudaModule, torch_cuda: Any
) -> None:
    out = torch_cuda.zeros(10, dtype=torch_cuda.int32, device="cuda")
    image = _native.cuda_compile(SOURCE, "test.cu", _native.cuda_arch(0), {}, [], [])
    fill = kernels.function("fill")
    failures: list[BaseException] = []
    # Torch itself is asked for nothing meanwhile: some of its calls may not be made during a capture.
    other_out = _native.CudaMemory(64, 0)

    def work() -> None:
        try:
            for _ in range(3):
                memory = _native.CudaMemory(MIB, 0)
                _native.CudaModule(image, 0).function("share").max_active_blocks(64, 100_000)
                assert _native.cuda_device_of(memory.address) == 0
                del memory
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    graph, stream = torch_cuda.cuda.CUDAGraph(), torch_cuda.cuda.Stream()
    with torch_cuda.cuda.graph(graph, stream=stream, capture_error_mode="global"):
        number = torch_cuda.cuda.current_stream().cuda_stream
        fill.launch(struct.pack("<Qii", out.data_ptr(), 1, 10), (1, 1, 1), (32, 1, 1), 0, number)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        work()
        fill.launch(struct.pack("<Qii", other_out.address, 2, 10), (1, 1, 1), (32, 1, 1), 0, number)
    assert not failures, failures
    graph.replay()
    torch_cuda.cuda.synchronize()
    assert out.tolist() == list(range(1, 11))


# --- while a kernel spins


def test_memory_is_made_and_freed_by_others_while_python_waits_for_a_free(
    kernels: _native.CudaModule, torch_cuda: Any
) -> None:
    """Freeing may wait for a kernel that spins; it must release the interpreter's lock, so another thread can end the spin."""
    word = torch_cuda.zeros(1, dtype=torch_cuda.int32).pin_memory()
    out = torch_cuda.zeros(1, dtype=torch_cuda.int32, device="cuda")
    spin = kernels.function("spin")
    memory: list[_native.CudaMemory] = [_native.CudaMemory(MIB, 0)]
    torch_cuda.cuda.synchronize()
    spin.launch(struct.pack("<QQ", word.data_ptr(), out.data_ptr()), (1, 1, 1), (1, 1, 1), 0, 0)
    began = time.monotonic()
    thread = threading.Thread(target=memory.clear)
    thread.start()
    time.sleep(0.2)
    word[0] = 5
    thread.join(60)
    torch_cuda.cuda.synchronize()
    assert out.item() == 5
    assert time.monotonic() - began < 8, "the spin ended because it was told to"


# --- memory of other processes


def _offset_torch() -> tuple[object, int, int]:
    import torch

    # Torch's pool has 20 MiB blocks for such sizes; the second one lies in the midst of one.
    first = torch.zeros(MIB + 4096, dtype=torch.uint8, device="cuda")
    second = torch.zeros(2 * MIB, dtype=torch.uint8, device="cuda")[12_345:]
    return (first, second), second.data_ptr(), second.numel()


def _offset_cupy() -> tuple[object, int, int]:
    import cupy  # type: ignore[import-not-found, unused-ignore]

    first = cupy.zeros(300, dtype=cupy.uint8)
    second = cupy.zeros(5000, dtype=cupy.uint8)[100:]
    return (first, second), second.data.ptr, second.nbytes


def _share_and_write(which: str) -> str:
    """Rank 0 lays memory open, in the midst of an allocation; rank 1 writes the whole of it."""
    import torch
    from mscclpp import Transport

    torch.cuda.set_device(0)
    group = join()
    communicator = group.communicator
    if rank() == 0:
        keep, address, nbytes = _offset_torch() if which == "torch" else _offset_cupy()
        torch.cuda.synchronize()
        memory = communicator.register_memory(address, nbytes, Transport.CudaIpc, keep)
        communicator.send_memory(memory, 1)
        group.barrier()
        group.barrier()
        mine = seen(address, nbytes).cpu()
        assert torch.equal(mine, torch.arange(nbytes, dtype=torch.int64).to(torch.uint8))
        # What lies before it is as it was.
        assert int(seen(address - 64, 64).count_nonzero()) == 0
        return f"{nbytes}"
    memory = communicator.recv_memory(0).get()
    theirs = seen(memory.data(), memory.size())
    group.barrier()
    theirs.copy_(torch.arange(memory.size(), dtype=torch.int64, device="cuda").to(torch.uint8))
    torch.cuda.synchronize()
    group.barrier()
    return f"{memory.size()}"


@pytest.mark.parametrize("which", ["torch", "cupy"])
def test_memory_in_the_midst_of_a_pool_is_shared_between_processes(which: str, world: World) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(which)
    mine, theirs = world.run(2, _share_and_write, which, deadline=180)
    assert mine == theirs


def _share_twice() -> list[int]:
    """Two parts of one allocation, each opened twice, are closed in another order."""
    import torch
    from mscclpp import Transport

    torch.cuda.set_device(0)
    group = join()
    communicator = group.communicator
    if rank() == 0:
        whole = _native.CudaMemory(4 * MIB, 0)
        tensor = seen(whole.address, whole.nbytes)
        tensor.copy_((torch.arange(4 * MIB, device="cuda") // MIB).to(torch.uint8))
        torch.cuda.synchronize()
        for offset in (MIB, 3 * MIB, MIB):
            memory = communicator.register_memory(whole.address + offset, MIB, Transport.CudaIpc, whole)
            communicator.send_memory(memory, 1)
        group.barrier()
        group.barrier()
        return []
    first, second, third = (communicator.recv_memory(0).get() for _ in range(3))
    assert second.data() - first.data() == 2 * MIB
    assert third.data() == first.data()
    values = []
    del first
    gc.collect()
    values.append(int(seen(third.data(), MIB)[-1]))
    values.append(int(seen(second.data(), MIB)[0]))
    del third
    gc.collect()
    values.append(int(seen(second.data(), MIB)[MIB - 1]))
    del second
    gc.collect()
    group.barrier()
    group.barrier()
    return values


def test_the_same_memory_is_opened_twice_and_let_go_of_in_any_order(world: World) -> None:
    pytest.importorskip("torch")
    assert world.run(2, _share_twice, deadline=180)[1] == [1, 3, 3]


def _share_small() -> list[int]:
    """Small memories lie side by side in one block of the driver's."""
    import torch
    from mscclpp import Transport

    torch.cuda.set_device(0)
    group = join()
    communicator = group.communicator
    if rank() == 0:
        memories = [_native.CudaMemory(64, 0) for _ in range(8)]
        for number, memory in enumerate(memories):
            seen(memory.address, 64).fill_(number + 1)
        torch.cuda.synchronize()
        for memory in memories:
            communicator.send_memory(
                communicator.register_memory(memory.address + 8, 8, Transport.CudaIpc, memory), 1
            )
        group.barrier()
        group.barrier()
        return [int(seen(memory.address, 64).sum()) for memory in memories]
    theirs = [communicator.recv_memory(0).get() for _ in range(8)]
    group.barrier()
    values = [int(seen(one.data(), 8).sum()) for one in theirs]
    for one in theirs:
        seen(one.data(), 8).fill_(0)
    torch.cuda.synchronize()
    group.barrier()
    return values


def test_small_memories_beside_each_other_are_shared_each_as_itself(world: World) -> None:
    pytest.importorskip("torch")
    mine, theirs = world.run(2, _share_small, deadline=180)
    assert theirs == [8 * number for number in range(1, 9)]
    assert mine == [56 * number for number in range(1, 9)]


def _own_memory() -> bool:
    import torch
    from mscclpp import Transport

    torch.cuda.set_device(0)
    communicator = join().communicator
    whole = _native.CudaMemory(MIB, 0)
    memory = communicator.register_memory(whole.address + 4096, 512, Transport.CudaIpc, whole)
    again = type(memory).deserialize(memory.serialize())
    return bool(again.data() == whole.address + 4096 and again.size() == 512)


def test_memory_of_this_process_keeps_its_address(world: World) -> None:
    pytest.importorskip("torch")
    assert world.run(1, _own_memory, deadline=180) == [True]


def _expandable() -> str:
    import torch
    from mscclpp import Transport

    torch.cuda.set_device(0)
    tensor = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    communicator = join().communicator
    try:
        communicator.register_memory(tensor.data_ptr(), MIB, Transport.CudaIpc, tensor).serialize()
    except Exception as error:  # noqa: BLE001
        return str(error)
    return "it was shared"


def test_unshareable_memory_is_an_error_with_a_remedy(world: World) -> None:
    pytest.importorskip("torch")
    env = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    words = world.start(1, _expandable, env=env).results(180)[0]
    assert "does not support CUDA IPC" in words
    assert "expandable_segments:False" in words and "GpuBuffer" in words
