"""Fashion-MNIST's files, which stand in MNIST's place: same names, same format."""

import os
from pathlib import Path

import pytest

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def folder() -> Path:
    """The folder with the four unpacked files; skips the test where there is none."""
    root = os.environ.get("RINGFOLD_MNIST") or Path.home() / ".cache" / "ringfold" / "data"
    raw = Path(root) / "MNIST" / "raw"
    if not all((raw / name).is_file() for name in FILES):
        pytest.skip(f"no MNIST files in {raw} (scripts/mnist-files {root} puts them there)")
    return raw
