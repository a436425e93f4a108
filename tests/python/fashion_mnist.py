"""Fashion-MNIST's files, which stand in MNIST's place: same names, same format."""

import gzip
import shutil
from pathlib import Path

import pytest

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
KEPT = Path.home() / ".cache" / "ringfold" / "data" / "MNIST" / "raw"
PACKAGED = Path("/usr/share/datasets/fashion-mnist")


def folder() -> Path:
    """The folder with the four unpacked files; skips the test where the machine has them in no form."""
    if not all((KEPT / name).is_file() for name in FILES):
        if not all((PACKAGED / f"{name}.gz").is_file() for name in FILES):
            pytest.skip(f"no MNIST files in {KEPT} (apt-get install dataset-fashion-mnist)")
        KEPT.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            unpacked = KEPT / f"{name}.part"
            with gzip.open(PACKAGED / f"{name}.gz") as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
            unpacked.replace(KEPT / name)
    return KEPT
