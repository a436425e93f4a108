"""The device headers compile, for every compiler that is here: alone, together, for hosts, and with every kernel.

No device is needed: NVRTC comes with torch.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from ringfold import _native
from variants import is_long, short_of

REPOSITORY = Path(__file__).parents[3]
HEADERS = REPOSITORY / "crates/ringfold-cuda/headers"
NAMES = sorted(str(path.relative_to(HEADERS)) for path in HEADERS.rglob("*.hpp"))
# Kernels of the crates need macros, and are compiled by tests of the crates.
KERNELS = sorted(
    path.relative_to(REPOSITORY)
    for top in ("tests", "examples", "bench", "docs")
    for path in (REPOSITORY / top).rglob("*.cu")
)

# Headers that users include by name.
PROMISED = ["torchcomms/window_device.hpp"]
PROMISED += [
    f"mscclpp/{name}.hpp"
    for name in """
    port_channel_device proxy_channel_device memory_channel_device sm_channel_device packet_device semaphore_device
    fifo_device concurrency_device copy_device poll_device device assert_device switch_channel_device nvls_device
    atomic_device bulk_device
    """.split()
]

# Layouts of handles on the host: size, and offset of each field.
LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "AbortLine": (
        128,
        {"flag": 0, "spinNs": 8, "errorWord": 16, "waitedNs": 24},
    ),
    "AbortPage": (4096, {"lines": 0}),
    "ProxyTrigger": (16, {"fst": 0, "snd": 8}),
    "FifoDeviceHandle": (
        48,
        {
            "triggers_": 0,
            "head_": 8,
            "tail_": 16,
            "tailCache_": 24,
            "abort_": 32,
            "size_": 40,
            "slotBits_": 44,
        },
    ),
    "Host2DeviceSemaphoreDeviceHandle": (
        32,
        {"inbound_": 0, "expected_": 8, "abort_": 16, "peer_": 24},
    ),
    "MemoryDevice2DeviceSemaphoreDeviceHandle": (
        40,
        {"inbound_": 0, "remoteInbound_": 8, "expected_": 16, "abort_": 24, "peer_": 32},
    ),
    "MemoryChannelDeviceHandle": (
        64,
        {"semaphore_": 0, "dst_": 40, "src_": 48, "packetBuffer_": 56},
    ),
    "BasePortChannelDeviceHandle": (88, {"semaphoreId_": 0, "semaphore_": 8, "fifo_": 40}),
    "PortChannelDeviceHandle": (
        96,
        {"semaphoreId_": 0, "semaphore_": 8, "fifo_": 40, "dst_": 88, "src_": 92},
    ),
    "LL16Packet": (16, {"data1": 0, "flag1": 4, "data2": 8, "flag2": 12}),
    "LL8Packet": (8, {"data": 0, "flag": 4}),
    "DeviceSyncer": (16, {}),
}

# The seed's kernel, as its author wrote it.
SEED = """
#include <mscclpp/packet_device.hpp>
#include <mscclpp/proxy_channel_device.hpp>

// be careful about using channels[my_rank] as it is inavlie and it is there just for simplicity of indexing
extern "C" __global__ void __launch_bounds__(1024, 1)
    proxy_channel(mscclpp::ProxyChannelDeviceHandle* channels, int my_rank, int nranks,
                         int num_elements) {
    int tid = threadIdx.x;
    int nthreads = blockDim.x;
    uint64_t size_per_rank = (num_elements * sizeof(int)) / nranks;
    uint64_t my_offset = size_per_rank * my_rank;
    __syncthreads();
    if (tid < nranks && tid != my_rank) {
      channels[tid].putWithSignalAndFlush(my_offset, my_offset, size_per_rank);
      channels[tid].wait();
    }
}
"""

# Calls of every function, with the old and the new names.
CALLS = """
#include <cuda_fp16.h>
#include <mscclpp/assert_device.hpp>
#include <mscclpp/atomic_device.hpp>
#include <mscclpp/bulk_device.hpp>
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/nvls_device.hpp>
#include <mscclpp/poll_device.hpp>
#include <mscclpp/proxy_channel_device.hpp>
#include <mscclpp/sm_channel_device.hpp>
#include <mscclpp/switch_channel_device.hpp>
#include <torchcomms/window_device.hpp>

__device__ mscclpp::DeviceSyncer deviceSyncer;
__device__ mscclpp::DeviceSemaphore semaphoreOfOne(1);
__device__ mscclpp::DeviceSemaphore semaphoreOfNone;

MSCCLPP_DEVICE_INLINE int twice(int x) { return 2 * x; }

extern "C" __global__ void port(mscclpp::PortChannelDeviceHandle port, mscclpp::BasePortChannelDeviceHandle base,
                                mscclpp::SimpleProxyChannelDeviceHandle* old, size_t size) {
  mscclpp::ProxyChannelDeviceHandle& same = old[0];
  same.put(0, 0, size);
  port.put(0, size);
  port.signal();
  port.putWithSignal(0, 0, size);
  port.putWithSignal(0, size);
  port.putWithSignalAndFlush(0, 0, size);
  port.putWithSignalAndFlush(0, size);
  port.putWithSignalAndFlush(0, 0, size, 100);
  port.flush();
  port.flush(-1);
  if (!port.poll()) port.wait();
  if (port.wait(1000000) != 0) return;
  mscclpp::MemoryId dst = 1, src = 2;
  base.put(dst, 0, src, 0, size);
  base.put(dst, src, 0, size);
  base.putWithSignal(dst, 0, src, 0, size);
  base.putWithSignalAndFlush(dst, 0, src, 0, size);
  base.signal();
  base.flush();
  base.wait();
}

extern "C" __global__ void memory(mscclpp::SmChannelDeviceHandle* old, mscclpp::MemoryChannelDeviceHandle channel,
                                  size_t bytes) {
  const uint32_t tid = threadIdx.x, n = blockDim.x;
  int flag = 123;
  channel.put(0, 0, bytes, tid, n);
  channel.put<8>(0, bytes, tid, n);
  channel.put<4>(0, 0, bytes, tid, n);
  channel.put<16, false>(0, 0, bytes, tid, n);
  channel.get(0, 0, bytes, tid, n);
  channel.get<8>(0, bytes, tid, n);
  channel.write<int>(tid, channel.read<int>(tid) + 1);
  channel.write(tid, make_uint4(1, 2, 3, 4));
  old[1].putPackets(0, 0, bytes, tid, n, flag);
  old[1].getPackets(0, 0, bytes, tid, n, flag);
  channel.putPackets<mscclpp::LL8Packet>(0, 0, bytes, tid, n, flag);
  channel.unpackPackets<mscclpp::LL8Packet>(0, 0, bytes, tid, n, flag);
  channel.unpackPackets<mscclpp::LL16Packet>(0, 0, bytes, tid, n, flag, 1000);
  uint2 wide = channel.unpackPacket(tid, flag);
  uint32_t narrow = channel.unpackPacket<mscclpp::LL8Packet>(tid, flag, -1);
  channel.write<uint32_t>(0, wide.x + wide.y + narrow);
  __syncthreads();
  if (tid == 0) {
    channel.signal();
    channel.relaxedSignal();
    channel.wait();
    while (!channel.poll()) continue;
  }
  deviceSyncer.sync(gridDim.x);
  deviceSyncer.sync(gridDim.x, -1);
  semaphoreOfOne.acquire();
  semaphoreOfOne.release();
  semaphoreOfNone.set(twice(2));
}

extern "C" __global__ void semaphores(mscclpp::SmDevice2DeviceSemaphoreDeviceHandle* old,
                                      mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle d2d,
                                      mscclpp::Host2DeviceSemaphoreDeviceHandle h2d, mscclpp::FifoDeviceHandle fifo,
                                      int* word) {
  old[0].signal();
  d2d.relaxedSignal();
  d2d.wait();
  h2d.wait(1000);
  h2d.poll();
  mscclpp::ProxyTrigger trigger;
  trigger.fst = 123;
  trigger.snd = 456;
  uint64_t position = fifo.push(trigger);
  fifo.push({1, 2});
  if (!fifo.poll(position)) fifo.sync(position);
  MSCCLPP_ASSERT_DEVICE(*word == 1, "one");
  assert(*word == 1);
  POLL_MAYBE_JAILBREAK(*reinterpret_cast<volatile int*>(word) == 0, 1000);
  OR_POLL_MAYBE_JAILBREAK(word[0] == 0, word[1] == 0, -1);
}

extern "C" __global__ void packets(mscclpp::LLPacket* packets, mscclpp::LL8Packet* small, char* data, __half* half) {
  uint2 two;
  uint32_t one;
  packets[0].write(1, 2, 3);
  packets[1].write(two = packets[0].read(3), 4);
  packets[2].write(uint64_t(5), 4u);
  if (packets[2].readOnce(4, two)) packets[2].clear();
  small[0].write(1, 2);
  if (small[0].readOnce(2, one)) small[0].clear();
  *half = __float2half(float(one + small[0].read(2, 10)));
  mscclpp::copyToPackets(packets, data, 64, threadIdx.x, blockDim.x, 1);
  mscclpp::copyFromPackets(data, packets, 64, threadIdx.x, blockDim.x, 1);
  mscclpp::copyFromPackets<mscclpp::LL8Packet>(data, small, 64, threadIdx.x, blockDim.x, 1);
  mscclpp::putPackets(packets, 0, data, 0, 64, threadIdx.x, blockDim.x, 1);
  mscclpp::getPackets<mscclpp::LL8Packet>(packets, 0, data, 0, 64, threadIdx.x, blockDim.x, 1);
  mscclpp::copy(data, packets, 64, threadIdx.x, blockDim.x);
  mscclpp::copy<4>(data, packets, 64, threadIdx.x, blockDim.x);
}

template <typename T, auto Scope>
__device__ void each(T* word) {
  using namespace mscclpp;
  T value = atomicLoad<T, Scope>(word, memoryOrderRelaxed);
  value += atomicLoad<T, Scope>(word, memoryOrderAcquire);
  value += atomicLoad<T, Scope>(word, memoryOrderSeqCst);
  atomicStore<T, Scope>(word, value, memoryOrderRelaxed);
  atomicStore<T, Scope>(word, value, memoryOrderRelease);
  atomicStore<T, Scope>(word, value, memoryOrderSeqCst);
  value += atomicFetchAdd<T, Scope>(word, 1, memoryOrderRelaxed);
  value += atomicFetchAdd<T, Scope>(word, 1, memoryOrderAcquire);
  value += atomicFetchAdd<T, Scope>(word, 1, memoryOrderRelease);
  value += atomicFetchAdd<T, Scope>(word, 1, memoryOrderAcqRel);
  value += atomicFetchAdd<T, Scope>(word, 1, memoryOrderSeqCst);
  value += atomicExchange<T, Scope>(word, 2, memoryOrderAcqRel);
  if (atomicCompareExchange<T, Scope>(word, value, 3, memoryOrderAcqRel)) atomicStore(word, 1, memoryOrderRelease);
}

template <typename T>
__device__ void atomics(T* word) {
  each<T, mscclpp::scopeSystem>(word);
  each<T, mscclpp::scopeDevice>(word);
  each<T, mscclpp::scopeBlock>(word);
}

extern "C" __global__ void orders(int32_t* a, uint32_t* b, int64_t* c, uint64_t* d, float* e, double* f, int** g) {
  atomics(a);
  atomics(b);
  atomics(c);
  atomics(d);
  atomics(e);
  atomics(f);
  mscclpp::atomicStore(g, mscclpp::atomicLoad(g, mscclpp::memoryOrderAcquire) + 1, mscclpp::memoryOrderRelease);
}

extern "C" __global__ void bulk(const char* src, char* dst, uint32_t bytes, uint32_t rounds) {
  __shared__ mscclpp::BulkBarrier arrived;
  extern __shared__ __align__(128) char tile[];
  if (threadIdx.x == 0) arrived.init();
  __syncthreads();
  for (uint32_t round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) mscclpp::bulkLoad(tile, src + round * bytes, bytes, arrived);
    if (arrived.wait(round) != 0 || !arrived.poll(round)) return;
    tile[threadIdx.x] += 1;
    mscclpp::bulkFence();
    __syncthreads();
    if (threadIdx.x == 0) {
      mscclpp::bulkStore(dst + round * bytes, tile, bytes);
      mscclpp::bulkCommit();
      mscclpp::bulkWaitRead();
      mscclpp::bulkWait<1>();
      mscclpp::bulkWait();
    }
    __syncthreads();
  }
}

extern "C" __global__ void window(torchcomms::DeviceWindow window, const torchcomms::DeviceWindow* same, char* memory,
                                  size_t size) {
  const int next = (window.rank() + 1) % window.size();
  bool isGood = window.put(next, 0, memory, size, threadIdx.x, blockDim.x);
  isGood &= same->get(next, 0, memory, window.bytes(next), threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) isGood = isGood && window.signal(next) && window.waitSignal(next) && same->waitSignal(next, 1000);
  if (!isGood) static_cast<char*>(window.memory(next))[threadIdx.x] = 0;
}

extern "C" __global__ void switches(mscclpp::DeviceMulticastPointerDeviceHandle old,
                                    mscclpp::SwitchChannelDeviceHandle channel) {
  uint4 val;
  mscclpp::DeviceMulticastPointerDeviceHandle::multimemLoadReduce(val, static_cast<float*>(old.mcPtr));
  mscclpp::DeviceMulticastPointerDeviceHandle::multimemStore(val, static_cast<float*>(old.mcPtr));
  channel.broadcast(0, channel.reduce<float>(1));
  static_cast<char*>(channel.devicePtr)[channel.bufferSize - 1] = 0;
}
"""


@cache
def why_no_compiler() -> str | None:
    """Why NVRTC cannot be used here."""
    try:
        _native.cuda_compiler()
    except RuntimeError as error:
        return str(error)
    return None


@pytest.fixture
def nvrtc() -> None:
    """Skips where there is no NVRTC."""
    if (why := why_no_compiler()) is not None:
        pytest.skip(f"needs NVRTC, which comes with torch: {why}")


def compiled(source: str, arch: str = "sm_90", standard: str = "c++17", name: str = "kernel.cu") -> bytes:
    """The result of NVRTC, with warnings as errors."""
    options = [f"-std={standard}", "-Werror=all-warnings"]
    return _native.cuda_compile(source, name, arch, {}, [], options, None)


both_standards = pytest.mark.parametrize("standard", ["c++17", "c++20"])
# Each architecture and each standard once; the other combinations, and code for devices of single headers, in the long run.
COMBINATIONS = short_of(
    [("compute_80", "c++17"), ("sm_90", "c++20")], [("compute_80", "c++20"), ("sm_90", "c++17")]
)
combinations = pytest.mark.parametrize(("arch", "standard"), COMBINATIONS)


def includes(*names: str) -> str:
    """Lines that include these headers."""
    return "".join(f"#include <{name}>\n" for name in names)


def layout_checks() -> str:
    """What the host and the device must agree on."""
    lines = [
        "#if defined(__CUDACC_RTC__)",
        "#define PLACE(type, part) __INTADDR__(&((static_cast<type*>(0))->part))",
        "#else",
        "#define PLACE(type, part) __builtin_offsetof(type, part)",
        "#endif",
    ]
    for name, (size, parts) in LAYOUTS.items():
        lines.append(f'static_assert(sizeof(mscclpp::{name}) == {size}, "{name}");')
        for part, at in parts.items():
            lines.append(f'static_assert(PLACE(mscclpp::{name}, {part}) == {at}, "{name}::{part}");')
    aligned = [name for name in LAYOUTS if name.endswith("Handle")]
    lines += [f'static_assert(alignof(mscclpp::{name}) == 8, "{name}");' for name in aligned]
    lines.append('static_assert(mscclpp::TriggerData == 1 && mscclpp::TriggerFlag == 2, "types");')
    lines.append('static_assert(mscclpp::TriggerSync == 4, "types");')
    return "\n".join(lines) + "\n"


def test_the_module_carries_the_headers_of_this_tree() -> None:
    embedded = _native.cuda_headers()
    assert set(PROMISED) <= set(NAMES)
    assert embedded == {name: (HEADERS / name).read_text() for name in NAMES}


@pytest.mark.parametrize(
    ("header", "arch", "standard"),
    [
        *((header, *each) for header in NAMES for each in (COMBINATIONS if is_long() else COMBINATIONS[:1])),
        *(("all", *each) for each in COMBINATIONS),
    ],
)
def test_a_header_compiles_alone_and_brings_the_integer_types(
    nvrtc: None, header: str, arch: str, standard: str
) -> None:
    names = NAMES if header == "all" else [header, header]
    compiled(
        includes(*names) + 'extern "C" __global__ void k(uint64_t* x, size_t y) { *x = y; }', arch, standard
    )


@both_standards
def test_handles_are_laid_out_as_the_host_does_it(nvrtc: None, standard: str) -> None:
    compiled(includes(*NAMES) + layout_checks(), "sm_90", standard)


@combinations
def test_the_seeds_kernel_compiles_as_it_stands(nvrtc: None, arch: str, standard: str) -> None:
    # It has a variable that it does not use.
    _native.cuda_compile(SEED, "test.cu", arch, {}, [], [f"-std={standard}"], None)


@combinations
def test_every_function_can_be_called_by_its_old_and_new_name(nvrtc: None, arch: str, standard: str) -> None:
    compiled(CALLS, arch, standard)


@pytest.mark.parametrize("arch", short_of(["sm_75", "sm_120"], ["sm_80", "sm_90", "sm_100"]))
def test_every_architecture_has_what_the_headers_use(nvrtc: None, arch: str) -> None:
    compiled(CALLS, arch)


@pytest.mark.parametrize(
    ("arch", "standard"),
    short_of([("compute_80", "c++20"), ("sm_90", "c++17")], [("sm_80", "c++20"), ("sm_90", "c++20")]),
)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_kernel_of_this_tree_compiles(nvrtc: None, kernel: Path, arch: str, standard: str) -> None:
    _native.cuda_compile(
        (REPOSITORY / kernel).read_text(),
        kernel.name,
        arch,
        {},
        [str((REPOSITORY / kernel).parent)],
        [f"-std={standard}"],
        None,
    )


def test_every_kernel_of_the_documentation_compiles(nvrtc: None) -> None:
    pages = [*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "README.md"]
    blocks = [
        (page, block)
        for page in pages
        for block in re.findall(r"```cuda\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert blocks
    for page, block in blocks:
        for arch in ("sm_80", "sm_90", "compute_80"):
            compiled(block, arch, name=page.name)


def test_the_page_of_the_process_can_be_found_in_a_module(nvrtc: None) -> None:
    ptx = compiled(CALLS, "compute_80").decode()
    assert re.search(r"\.global \.align 8 \.u64 mscclppAbortPage\b", ptx)
    # No kernel assumes its initial value of zero.
    assert re.search(r"\bld\S*\.u64\s+\S+ \[mscclppAbortPage\]", ptx)


@pytest.mark.parametrize(
    ("header", "standard"),
    [
        *((header, "c++17") for header in NAMES),
        *short_of([("all", "c++17"), ("all", "c++20")], [(header, "c++20") for header in NAMES]),
    ],
)
def test_a_compiler_for_hosts_reads_the_headers(tmp_path: Path, header: str, standard: str) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no compiler for C++ is installed")
    source = tmp_path / "host.cpp"
    source.write_text(includes(*(NAMES if header == "all" else [header])))
    if header == "all":
        source.write_text(source.read_text() + layout_checks())
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-invalid-offsetof"]
    words = [compiler, f"-std={standard}", *warnings, "-fsyntax-only", f"-I{HEADERS}", str(source)]
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_logic_of_the_headers_holds_among_threads_of_a_host(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    # The first include directory has the memory accesses without PTX.
    here, program = Path(__file__).parent / "host", tmp_path / "program"
    words = [compiler, "-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", "-D__CUDACC__"]
    words += [f"-I{here}", f"-I{HEADERS}", str(here / "headers.cpp"), "-o", str(program)]
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    result = subprocess.run([program], check=False, capture_output=True, text=True, timeout=120)
    assert result.stdout == "all of it holds\n", result.stdout


@both_standards
@pytest.mark.parametrize("relocatable", [False, True])
def test_two_objects_of_nvcc_are_linked_into_one_program(
    tmp_path: Path, standard: str, relocatable: bool
) -> None:
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    one, other, host = tmp_path / "one.cu", tmp_path / "other.cu", tmp_path / "host.cpp"
    one.write_text(includes(*NAMES) + layout_checks() + SEED + "int main() { return 0; }\n")
    other.write_text(CALLS)
    host.write_text(includes(*NAMES))
    words = [nvcc, f"-std={standard}", "-arch=sm_90", f"-I{HEADERS}", "-diag-suppress=177,1427"]
    words += ["-Xcompiler", "-Wno-invalid-offsetof", f"-rdc={str(relocatable).lower()}"]
    words += [str(one), str(other), str(host), "-o", str(tmp_path / "program")]
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr


def cuobjdump(*words: str) -> str:
    """The output of cuobjdump for an image; skips if it is not installed."""
    tool = shutil.which("cuobjdump")
    triton = importlib.util.find_spec("triton") if tool is None else None
    if triton is not None and triton.origin is not None:
        packaged = Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump"
        tool = str(packaged) if packaged.exists() else None
    if tool is None:
        pytest.skip("cuobjdump is not here; it comes with CUDA and with triton")
    result = subprocess.run([tool, *words], capture_output=True, text=True, timeout=120, check=True)
    return result.stdout


def test_no_kernel_spills(nvrtc: None, tmp_path: Path) -> None:
    image = tmp_path / "calls.cubin"
    image.write_bytes(compiled(CALLS, "sm_90"))
    usage = [line for line in cuobjdump("-res-usage", str(image)).splitlines() if "REG:" in line]
    assert len(usage) == CALLS.count('extern "C" __global__')
    for line in usage:
        assert "STACK:0" in line and "LOCAL:0" in line, line


# Bodies of kernels, and the instruction that each must have.
INSTRUCTIONS = {
    "packets[0].write(1, 2, 3);": r"STG\.E\.128\.STRONG\.SYS",
    "*out = packets[0].read(3).x;": r"LDG\.E\.128\.STRONG\.SYS",
    "small[0].write(1, 2);": r"STG\.E\.64\.STRONG\.SYS",
    "*out = small[0].read(2);": r"LDG\.E\.64\.STRONG\.SYS",
    "fifo.push({1, 2});": r"STG\.E\.128\.STRONG\.SYS",
    "channel.put(0, 0, 1 << 20, threadIdx.x, blockDim.x);": r"STG\.E\.128 ",
    "channel.signal();": r"RED(G)?\.E\.ADD\.64\.STRONG\.SYS",
    "channel.wait();": r"LDG\.E\.64\.STRONG\.SYS",
}


@cache
def instructions_of_kernels(arch: str) -> list[str]:
    """The machine code of a kernel for each body, compiled together."""
    parameters = "mscclpp::LL16Packet* packets, mscclpp::LL8Packet* small, mscclpp::FifoDeviceHandle fifo, "
    parameters += "mscclpp::MemoryChannelDeviceHandle channel, uint32_t* out"
    source = includes("mscclpp/memory_channel_device.hpp", "mscclpp/fifo_device.hpp")
    for number, body in enumerate(INSTRUCTIONS):
        source += f'extern "C" __global__ void body{number}({parameters}) {{ {body} }}\n'
    with tempfile.NamedTemporaryFile(suffix=".cubin") as image:
        image.write(compiled(source, arch))
        image.flush()
        code = cuobjdump("-sass", image.name)
    by_name = dict(re.findall(r"Function : (\w+)\n(.*?)(?=Function : |\Z)", code, re.DOTALL))
    return [by_name[f"body{number}"] for number in range(len(INSTRUCTIONS))]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"], ids=lambda arch: f"@{arch}")
@pytest.mark.parametrize(("body", "instruction"), INSTRUCTIONS.items())
def test_what_must_arrive_together_is_one_instruction(
    nvrtc: None, body: str, instruction: str, arch: str
) -> None:
    code = instructions_of_kernels(arch)[list(INSTRUCTIONS).index(body)]
    assert re.search(instruction, code), code
