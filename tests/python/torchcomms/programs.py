"""Functions that run a whole program in a rank. Ranks need not import the test module for them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def run_program(path: str, *words: str) -> None:
    """Runs this program."""
    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def run_on_a_cpu(path: str, store: str) -> None:
    """A program of the documentation, where there is no GPU; its result is printed at the end."""
    text = Path(path).read_text()
    text = text.replace('torch.device("cuda:0")', 'torch.device("cpu")').replace('"nccl"', '"gloo"')
    text = text.replace("/tmp/torchcomm_test", store)
    exec(compile(text, path, "exec"), scope := {})
    if "recv_tensor" in scope:
        print("received:", scope["recv_tensor"].tolist())


def tells(path: str) -> None:
    """Prints the help of an example."""
    try:
        run_program(path, "--help")
    except SystemExit as end:
        assert end.code in (0, None)
