"""The CUDA compilers: NVRTC if there is one, else nvcc."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from mscclpp._errors import engine_errors, invalid
from mscclpp._headers import headers_digest, include_path
from ringfold import _native
from ringfold._error import PortError

# The timeout of nvcc.
NVCC_SECONDS = 600.0
STANDARD = "-std=c++20"

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
# NVRTC's errors for host headers that it lacks, and for host code.
_NO_HEADER = re.compile(
    r"(cannot|could not) open source file|No such file|not allowed in JIT mode", re.IGNORECASE
)


def _toolkits() -> Iterator[Path]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    yield Path("/usr/local/cuda")


@cache
def nvrtc() -> tuple[str, str] | None:
    """The path and version of NVRTC, of a Python package or the CUDA toolkit; None if there is none."""
    try:
        path, (major, minor) = _native.cuda_compiler()
    except PortError:
        return None
    return str(path), f"{major}.{minor}"


@cache
def nvcc() -> str | None:
    """The path of nvcc; None if there is none."""
    for base in _toolkits():
        found = shutil.which(str(base / "bin" / "nvcc"))
        if found:
            return found
    return shutil.which("nvcc")


def compile_file(path: Path, arch: str, defines: Mapping[str, str]) -> bytes:
    """Compiles a source: by NVRTC, or by nvcc if there is no NVRTC or it lacks a host header."""
    try:
        source = path.read_text()
    except OSError as error:
        raise invalid(f"reading the kernel failed: {error}") from None
    try:
        return _native.cuda_compile(source, str(path), arch, dict(defines), [str(path.parent)], [STANDARD])
    except PortError as error:
        is_users_error = error.kind == "argument" and not _NO_HEADER.search(str(error))
        if nvcc() is not None and not is_users_error:
            return _by_nvcc(path, arch, defines)
        with engine_errors():
            raise


def _by_nvcc(path: Path, arch: str, defines: Mapping[str, str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.cubin"
        macros = [f"-D{name}={value}" if value != "" else f"-D{name}" for name, value in defines.items()]
        words = [
            nvcc() or "nvcc",
            "-cubin",
            f"-arch={arch}",
            STANDARD,
            f"-I{include_path()}",
            f"-I{path.parent}",
        ]
        try:
            ended = subprocess.run(
                [*words, *macros, "-o", str(out), str(path)],
                capture_output=True,
                text=True,
                timeout=NVCC_SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise invalid(f"running nvcc for {path} failed: {error}") from None
        if ended.returncode:
            raise invalid(f"compiling {path} failed:\n{ended.stdout}{ended.stderr}")
        return out.read_bytes()


def fingerprint(path: Path, arch: str, defines: Mapping[str, str]) -> str:
    """A digest of everything that a compiled source depends on: includes, compiler, macros, architecture."""
    digest = hashlib.sha256()

    def add(*parts: str) -> None:
        for part in parts:
            digest.update(f"{len(part)}:{part}".encode(errors="surrogateescape"))

    add("1", _native.__version__, headers_digest(), arch, STANDARD)
    for name, value in sorted(defines.items()):
        add(name, value)
    library, version = nvrtc() or (None, "")
    add(version, _identity(library), _identity(nvcc()))
    for name, text in _sources(path):
        add(name, text)
    return digest.hexdigest()


def _identity(file: str | None) -> str:
    if file is None:
        return ""
    about = os.stat(file)
    return f"{os.path.realpath(file)} {about.st_size} {about.st_mtime_ns}"


def _sources(path: Path) -> Iterator[tuple[str, str]]:
    """A source and the files beside it that it includes, with their texts."""
    pending, seen = [path], {path}
    while pending:
        one = pending.pop()
        try:
            text = one.read_text(errors="surrogateescape")
        except OSError:
            if one == path:
                raise invalid(f"no kernel at {path}") from None
            continue
        yield str(one), text
        for name in _INCLUDE.findall(text):
            for folder in (one.parent, path.parent):
                near = folder / name
                if near not in seen and near.is_file():
                    seen.add(near)
                    pending.append(near)
