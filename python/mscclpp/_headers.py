"""The device headers, as files for compilers."""

from __future__ import annotations

import hashlib
from functools import cache

from mscclpp._cache import cache_folder, write_atomically
from mscclpp._errors import SysError
from ringfold import _native


@cache
def headers() -> dict[str, str]:
    """The headers: include names and texts."""
    return dict(_native.cuda_headers())


@cache
def headers_digest() -> str:
    """A digest of the headers."""
    digest = hashlib.sha256()
    for name, text in sorted(headers().items()):
        digest.update(f"{name}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()[:16]


def include_path() -> str:
    """A folder with the device headers, for nvcc: ``nvcc -I$(python -m mscclpp --include) ...``."""
    folder = cache_folder() / f"include-{headers_digest()}"
    for name, text in headers().items():
        path, data = folder / name, text.encode()
        try:
            is_there = path.read_bytes() == data
        except OSError:
            is_there = False
        if not is_there and not write_atomically(path, data):
            raise SysError(
                0, f"writing the headers to {folder} failed: set MSCCLPP_CACHE_DIR to a writable folder"
            )
    return str(folder)
