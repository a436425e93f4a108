"""Sources are compiled by NVRTC, with our headers from memory. No device is needed: NVRTC comes with torch."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from ringfold import _native
from ringfold._error import PortError

SET = 'extern "C" __global__ void set(int* at, int value) { *at = value; }\n'


@pytest.fixture(scope="module", autouse=True)
def needs_compiler() -> None:
    """Skips where there is no NVRTC."""
    try:
        _native.cuda_compiler()
    except PortError as error:
        pytest.skip(f"needs NVRTC: {error}")


def compiled(
    source: str,
    *,
    name: str = "kernel.cu",
    arch: str = "sm_90",
    defines: dict[str, str] | None = None,
    include_dirs: list[str] | None = None,
    options: list[str] | None = None,
) -> bytes:
    return _native.cuda_compile(source, name, arch, defines or {}, include_dirs or [], options or [])


def test_code_for_a_device_is_a_cubin_and_for_a_family_it_is_ptx() -> None:
    assert compiled(SET).startswith(b"\x7fELF")
    assert b".visible .entry set(" in compiled(SET, arch="compute_80")


def test_the_compiler_says_where_it_is() -> None:
    path, (major, minor) = _native.cuda_compiler()
    assert "nvrtc" in path.name and path.is_file()
    assert major >= 12 and minor >= 0
    assert _native.cuda_compiler(str(path)) == (path, (major, minor))
    assert _native.cuda_compiler(str(path.parent))[1] == (major, minor), "a directory will do, too"


def test_a_compile_error_has_the_file_the_line_and_the_compilers_log() -> None:
    wrong = 'extern "C" __global__ void k(int* a) {\n  a[0] = nowhere;\n}\n'
    with pytest.raises(PortError) as caught:
        compiled(wrong, name="/src/wrong.cu")
    assert caught.value.kind == "argument"
    assert "/src/wrong.cu(2): error:" in str(caught.value)
    assert '"nowhere" is undefined' in str(caught.value)


def test_an_error_in_a_header_names_the_header(tmp_path: Path) -> None:
    (tmp_path / "half.cuh").write_text("\n\nint* wrong = ;\n")
    with pytest.raises(PortError, match=r"half\.cuh\(3\): error"):
        compiled('#include "half.cuh"\n' + SET, include_dirs=[str(tmp_path)])


def test_a_missing_header_is_an_error() -> None:
    with pytest.raises(PortError, match="no_such_header.hpp") as caught:
        compiled("#include <no_such_header.hpp>\n" + SET)
    assert caught.value.kind == "argument"


def test_an_unknown_architecture_or_option_is_an_error() -> None:
    with pytest.raises(PortError, match="sm_1"):
        compiled(SET, arch="sm_1")
    with pytest.raises(PortError, match="no-such-option"):
        compiled(SET, options=["--no-such-option"])


def test_a_missing_compiler_is_an_error() -> None:
    with pytest.raises(PortError, match="/nowhere/libnvrtc.so.13") as caught:
        _native.cuda_compile(SET, "kernel.cu", "sm_90", {}, [], [], "/nowhere/libnvrtc.so.13")
    assert caught.value.kind == "unsupported"


def test_macros_reach_the_source() -> None:
    check = (
        "static_assert(WIDTH == 8);\n#ifndef FLAG\n#error no flag\n#endif\n#if FLAG != 1\n#error\n#endif\n"
    )
    compiled(check + SET, defines={"WIDTH": "(4 + 4)", "FLAG": ""})
    with pytest.raises(PortError, match="WIDTH"):
        compiled(check + SET)


def test_headers_beside_a_source_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "with a blank"
    folder.mkdir()
    (folder / "three.cuh").write_text("#define THREE 3\n")
    compiled('#include "three.cuh"\nstatic_assert(THREE == 3);\n' + SET, include_dirs=[str(folder)])


@pytest.mark.parametrize("standard", ["-std=c++17", "-std=c++20"])
@pytest.mark.parametrize("arch", ["sm_90", "compute_80"])
def test_sources_find_what_they_take_for_granted(arch: str, standard: str) -> None:
    compiled(
        """
        extern "C" __global__ void k(uint64_t* a, size_t n, uint8_t b, int64_t c, uintptr_t d) {
          assert(a != nullptr);
          if (n == 7) printf("%d", int(b));
          a[0] = n + c + d;
        }
        """,
        arch=arch,
        options=[standard],
    )
    compiled(
        """
        #include <cassert>
        #include <cstddef>
        #include <cstdint>
        #include <cstdio>
        #include <stdint.h>
        #include <cuda_bf16.h>
        #include <cuda_fp16.h>
        #include <cuda_runtime.h>
        extern "C" __global__ void k(__half2* a, __nv_bfloat162* b, std::uint64_t n) {
          assert(n < UINT32_MAX);
          a[n] = __hadd2(a[0], a[1]);
          b[n] = __hadd2(b[0], b[1]);
        }
        """,
        arch=arch,
        options=[standard],
    )


def test_sources_are_cpp20_unless_they_say_otherwise() -> None:
    concept = "template <typename T> concept Small = sizeof(T) < 4;\nstatic_assert(Small<char>);\n"
    compiled(concept + SET)
    with pytest.raises(PortError):
        compiled(concept + SET, options=["-std=c++17"])


def test_our_headers_are_found_without_a_directory() -> None:
    headers = _native.cuda_headers()
    assert "mscclpp/packet_device.hpp" in headers
    for name, text in headers.items():
        assert text.strip(), name
        compiled(f"#include <{name}>\n" + SET)


def test_threads_compile_at_the_same_time() -> None:
    images: list[bytes] = []

    def compile_one(number: int) -> None:
        images.append(compiled(SET.replace("set", f"set_{number}"), arch="compute_80"))

    threads = [threading.Thread(target=compile_one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(any(f"set_{n}(".encode() in image for image in images) for n in range(4)) == [True] * 4


def test_without_a_device_calls_raise() -> None:
    why_not = _native.cuda_unavailable_reason()
    if why_not is None:
        pytest.skip("there is a CUDA device here")
    assert "CUDA" in why_not
    assert _native.cuda_count() == 0
    for call in (
        lambda: _native.CudaMemory(8, 0),
        lambda: _native.CudaModule(b"x", 0),
        lambda: _native.cuda_arch(0),
        _native.cuda_current,
    ):
        with pytest.raises(PortError) as caught:
            call()
        assert caught.value.kind in ("unsupported", "argument"), caught.value
        assert "CUDA" in str(caught.value)


def test_memory_of_the_host_is_on_no_device() -> None:
    memory = bytearray(64)
    assert _native.cuda_device_of(id(memory)) is None
