"""Kernels are compiled without a GPU, and cached; calls that need a GPU raise."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import mscclpp
import pytest
from mscclpp import Error, KernelBuilder
from mscclpp._compiler import nvrtc
from ringfold import _native
from world import Spawn

SEEDS = Path(__file__).parents[1] / "seeds"
EXAMPLES = Path(__file__).parents[3] / "examples" / "python" / "mscclpp"

SOURCE = """
#include "near.cuh"
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mscclpp/memory_channel_device.hpp>
#ifndef FACTOR
#define FACTOR 1
#endif
extern "C" __global__ void fill(uint64_t* out, int n, size_t value) {
  assert(n > 0);
  if (threadIdx.x < n) out[threadIdx.x] = value * FACTOR + near();
}
"""


@pytest.fixture
def needs_nvrtc() -> None:
    if nvrtc() is None:
        pytest.skip("there is no NVRTC (pip install nvidia-cuda-nvrtc)")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "fill.cu").write_text(SOURCE)
    (tmp_path / "near.cuh").write_text("__device__ inline int near() { return 1; }\n")
    return tmp_path / "fill.cu"


COMPILE = """
import sys, time
from pathlib import Path
import mscclpp
folder, arch, *macros = sys.argv[1:]
builder = mscclpp.KernelBuilder("fill.cu", "fill", folder, dict(m.split("=") for m in macros))
began = time.monotonic()
image = builder.compile(arch)
import hashlib
print("image", hashlib.sha256(image).hexdigest(), time.monotonic() - began)
"""


class Compiles:
    def __init__(self, spawn: Spawn, source: Path, cache: Path) -> None:
        self._spawn, self._source, self.cache = spawn, source, cache

    def __call__(self, *macros: str, arch: str = "sm_90") -> str:
        environment = {"MSCCLPP_CACHE_DIR": str(self.cache)}
        child = self._spawn(COMPILE, self._source.parent, arch, *macros, env=environment)
        return child.succeed(120).split()[1]

    def kept(self) -> int:
        return len(list(self.cache.glob("*.cubin")))


@pytest.fixture
def compiles(spawn: Spawn, source: Path, tmp_path: Path) -> Compiles:
    return Compiles(spawn, source, tmp_path / "cache")


def test_what_was_compiled_is_kept_by_all_that_it_depends_on(
    needs_nvrtc: None, compiles: Compiles, source: Path
) -> None:
    first = compiles()
    assert compiles() == first and compiles.kept() == 1
    assert compiles("FACTOR=3") != first and compiles.kept() == 2
    assert compiles(arch="sm_80") != first and compiles.kept() == 3
    # A file that it includes.
    near = source.with_name("near.cuh")
    near.write_text(near.read_text().replace("1", "2"))
    assert compiles() != first and compiles.kept() == 4
    near.write_text(near.read_text().replace("2", "1"))
    assert compiles() == first and compiles.kept() == 4


def test_processes_that_compile_the_same_at_once_all_get_it(needs_nvrtc: None, compiles: Compiles) -> None:
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(compiles())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(got) == 6 and len(set(got)) == 1 and compiles.kept() == 1
    assert not list(compiles.cache.glob(".draft-*"))


def test_an_unwritable_cache_is_ignored(
    needs_nvrtc: None, spawn: Spawn, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    compiles = Compiles(spawn, source, tmp_path / "file" / "cache")
    assert compiles() == compiles()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "compute_80"])
def test_the_kernels_of_the_seed_and_of_the_example_compile(needs_nvrtc: None, arch: str) -> None:
    for folder, file, name in ((SEEDS, "test.cu", "proxy_channel"), (EXAMPLES, "put_all.cu", "put_all")):
        image = KernelBuilder(file=file, kernel_name=name, file_dir=folder).compile(arch)
        assert name.encode() in image


def test_a_source_that_does_not_compile_is_quoted(needs_nvrtc: None, tmp_path: Path) -> None:
    (tmp_path / "bad.cu").write_text('extern "C" __global__ void bad() { undefined_name(); }\n')
    with pytest.raises(Error, match="undefined_name"):
        KernelBuilder("bad.cu", "bad", str(tmp_path)).compile("sm_90")
    if shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
        (tmp_path / "bad.cu").write_text("#include <no_such_header.h>\n")
        with pytest.raises(Error, match="no_such_header"):
            KernelBuilder("bad.cu", "bad", tmp_path).compile("sm_90")


def test_a_missing_kernel_file_is_named_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(Error, match="no kernel at .*/none.cu"):
        KernelBuilder(file="none.cu", kernel_name="none", file_dir=str(tmp_path))


def test_without_a_gpu_calls_that_need_one_raise(source: Path) -> None:
    if _native.cuda_unavailable_reason() is None:
        pytest.skip("there is a GPU")
    with pytest.raises(mscclpp.CudaError, match="needs a GPU"):
        KernelBuilder("fill.cu", "fill", source.parent).get_compiled_kernel()
    with pytest.raises(mscclpp.CudaError, match="no GPU"):
        mscclpp.RawGpuBuffer(16)
    with pytest.raises(ValueError, match="0 bytes"):
        mscclpp.RawGpuBuffer(0)
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    bootstrap.initialize(bootstrap.create_unique_id())
    with pytest.raises(mscclpp.CudaError, match="CUDA"):
        mscclpp.Communicator(bootstrap).connect(mscclpp.Transport.CudaIpc, 0)
    began = time.monotonic()
    assert mscclpp.is_nvls_supported() is False
    assert time.monotonic() - began < 1
