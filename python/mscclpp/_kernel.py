"""Kernels of the user's own: compiled, kept, and launched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mscclpp._cache import kept
from mscclpp._communicator import check_living
from mscclpp._compiler import compiled, fingerprint
from mscclpp._errors import CudaError, invalid, told
from ringfold import _native

Blocks = int | tuple[int, ...]


class Kernel:
    """A compiled kernel, by its unmangled name (``extern "C"``). It is loaded when this is made, because loading may have to wait
    for kernels that run.
    """

    def __init__(self, image: bytes, kernel_name: str) -> None:
        self._image = image
        self._name = kernel_name
        self._functions: dict[int, _native.CudaFunction] = {}
        self._function()

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    def launch_kernel(
        self, params: bytes, nblocks: Blocks, nthreads: Blocks, shared: int = 0, stream: Any = None
    ) -> None:
        """Launches it on the current GPU.

        :param params: its parameters, one after the other as the compiler lays them out; :func:`mscclpp.pack` helps
        :param nblocks: blocks, or up to three numbers of them
        :param nthreads: threads of a block, likewise
        :param shared: bytes of dynamic shared memory
        :param stream: None for the default stream, a stream of cupy or torch, or its number. It may be capturing.

        Raises if a communicator of this process is over, because a rank died, a kernel waited in vain, or somebody aborted: waits in
        kernels would end at once, and nothing would be right.
        """
        check_living()
        with told():
            self._function().launch(
                bytes(params),
                _three(nblocks, "nblocks"),
                _three(nthreads, "nthreads"),
                int(shared),
                stream_number(stream),
            )

    def _function(self) -> _native.CudaFunction:
        with told():
            ordinal = _native.cuda_current()
            if ordinal not in self._functions:
                self._functions[ordinal] = _native.CudaModule(self._image, ordinal).function(self._name)
            return self._functions[ordinal]


class KernelBuilder:
    """Compiles a kernel from a file of CUDA C++, with the headers ``mscclpp/*.hpp`` at hand.

        kernel = KernelBuilder(file="test.cu", kernel_name="test", file_dir=folder).get_compiled_kernel()
        kernel.launch_kernel(pack(channels, rank), nblocks=1, nthreads=512, shared=0, stream=None)

    What was compiled once is kept in ``MSCCLPP_CACHE_DIR`` or ``~/.cache/ringfold/kernels``, and used again as long as the source,
    what it includes, the macros, the GPU's architecture and the compiler are the same.
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
            raise invalid(f"there is no kernel at {self._path}")

    def get_compiled_kernel(self) -> Kernel:
        """The kernel, ready to be launched on the current GPU."""
        with told():
            why = _native.cuda_why_not()
            if why is not None:
                raise CudaError(0, f"a kernel needs a GPU: {why}")
            arch = _native.cuda_arch(_native.cuda_current())
        return Kernel(self.compile(arch), self._name)

    def compile(self, arch: str) -> bytes:
        """The compiled source for an architecture as ``sm_90``. No GPU is needed for that."""
        name = f"{fingerprint(self._path, arch, self._defines)}.cubin"
        return kept(name, lambda: compiled(self._path, arch, self._defines))


def stream_number(stream: Any) -> int:
    """The stream that an object is, by its number."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number
    raise invalid(f"a stream is one of cupy or torch, or its number, not {type(stream).__name__}")


def _three(given: Blocks, name: str) -> tuple[int, int, int]:
    numbers = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not 1 <= len(numbers) <= 3 or any(not hasattr(n, "__index__") or n < 1 for n in numbers):
        raise invalid(f"{name} is one to three numbers above 0, not {given!r}")
    x, y, z = (*(int(n) for n in numbers), 1, 1)[:3]
    return x, y, z
