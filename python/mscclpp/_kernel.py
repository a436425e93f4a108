"""User kernels: compile, cache, launch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mscclpp._cache import cached
from mscclpp._communicator import check_all
from mscclpp._compiler import compile_file, fingerprint
from mscclpp._errors import CudaError, engine_errors, invalid
from ringfold import _native

Blocks = int | tuple[int, ...]


class Kernel:
    """A compiled kernel, by its unmangled name (``extern "C"``).

    The constructor loads it, because loading may wait for running kernels.
    """

    def __init__(self, image: bytes, kernel_name: str) -> None:
        self._image = image
        self._name = kernel_name
        self._functions: dict[int, _native.CudaFunction] = {}
        self._function()

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    def launch_kernel(
        self, params: bytes, nblocks: Blocks, nthreads: Blocks, shared: int = 0, stream: Any = None
    ) -> None:
        """Launches it on the current GPU.

        :param params: the bytes of its parameters in the compiler's layout, for example of :func:`mscclpp.pack`
        :param nblocks: blocks, in up to three dimensions
        :param nthreads: threads of a block, likewise
        :param shared: bytes of dynamic shared memory
        :param stream: None for the default stream, a stream of cupy or torch, or its handle. It may be capturing.

        Raises if a communicator of this process has failed: waits in kernels would end at once, with wrong results.
        """
        check_all()
        with engine_errors():
            self._function().launch(
                bytes(params),
                _three(nblocks, "nblocks"),
                _three(nthreads, "nthreads"),
                int(shared),
                stream_handle(stream),
            )

    def _function(self) -> _native.CudaFunction:
        with engine_errors():
            ordinal = _native.cuda_current()
            if ordinal not in self._functions:
                self._functions[ordinal] = _native.CudaModule(self._image, ordinal).function(self._name)
            return self._functions[ordinal]


class KernelBuilder:
    """Compiles a kernel from a CUDA C++ file, which may include ``mscclpp/*.hpp``.

        kernel = KernelBuilder(file="test.cu", kernel_name="test", file_dir=folder).get_compiled_kernel()
        kernel.launch_kernel(pack(channels, rank), nblocks=1, nthreads=512, shared=0, stream=None)

    The result is cached in ``MSCCLPP_CACHE_DIR`` or ``~/.cache/ringfold/kernels``, by source, includes, macros, architecture and
    compiler.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        kernel_name: str,
        file_dir: str | os.PathLike[str] | None = None,
        macro_dict: Mapping[str, object] | None = None,
    ) -> None:
        self._path = Path(file_dir or "", file).absolute()
        self._name = kernel_name
        self._defines = {name: str(value) for name, value in (macro_dict or {}).items()}
        if not self._path.is_file():
            raise invalid(f"no kernel at {self._path}")

    def get_compiled_kernel(self) -> Kernel:
        """The kernel, compiled for and loaded on the current GPU."""
        with engine_errors():
            why = _native.cuda_unavailable_reason()
            if why is not None:
                raise CudaError(0, f"a kernel needs a GPU: {why}")
            arch = _native.cuda_arch(_native.cuda_current())
        return Kernel(self.compile(arch), self._name)

    def compile(self, arch: str) -> bytes:
        """The compiled source for an architecture such as ``sm_90``. Needs no GPU."""
        name = f"{fingerprint(self._path, arch, self._defines)}.cubin"
        return cached(name, lambda: compile_file(self._path, arch, self._defines))


def stream_handle(stream: Any) -> int:
    """The handle of a stream of cupy or torch."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number
    raise invalid(f"invalid stream of type {type(stream).__name__}: must be of cupy or torch, or its handle")


def _three(given: Blocks, name: str) -> tuple[int, int, int]:
    numbers = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not 1 <= len(numbers) <= 3 or any(not hasattr(n, "__index__") or n < 1 for n in numbers):
        raise invalid(f"invalid {name} {given!r}: must be one to three numbers > 0")
    x, y, z = (*(int(n) for n in numbers), 1, 1)[:3]
    return x, y, z
