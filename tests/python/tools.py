"""Packages that only the long tests use. ``./test --long`` installs them into an environment of their own."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from variants import is_long


def root() -> Path:
    """The environment."""
    return Path(os.environ.get("RINGFOLD_TOOLS") or Path.home() / ".cache" / "ringfold" / "tools-venv")


def program(name: str) -> Path:
    """A program of these packages; skips the test where it is not installed."""
    if not is_long():
        pytest.skip(f"the long variant: needs {name}")
    path = root() / "bin" / name
    if not path.exists():
        pytest.skip(f"{name} not installed in {root()} (scripts/python-env --with does that)")
    return path


def environment(*packages: str) -> dict[str, str]:
    """The variables with which a process finds these packages; skips the test where they are not installed."""
    names = " and ".join(packages)
    if not is_long():
        pytest.skip(f"the long variant: needs {names}")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = root() / "lib" / version / "site-packages"
    path = [str(folder), *sys.path]
    missing = [each for each in packages if PathFinder.find_spec(each, path) is None]
    if missing:
        pytest.skip(
            f"{' and '.join(missing)} not installed in {root()} (scripts/python-env --with does that)"
        )
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([*([inherited] if inherited else []), str(folder)])}
