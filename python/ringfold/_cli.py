"""The commands ``ringfold``, ``ccoip_master`` and ``pccl_master``, as the wheel installs them."""

from __future__ import annotations

import signal
import sys


def ringfold() -> int:
    """``ringfold master``, ``ringfold demo``: see ``ringfold --help``."""
    return _run("ringfold")


def ccoip_master() -> int:
    """A master that needs no arguments."""
    return _run("ccoip_master")


def pccl_master() -> int:
    """The same master under the name that users of ``pccl`` know."""
    return _run("pccl_master")


def _run(name: str) -> int:
    # The command catches signals by itself and ends cleanly. Python's own handler would see them too, and raise a
    # KeyboardInterrupt when all is over.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from ringfold import _native

    # How it starts itself again, in processes of its own; -P because a folder named ringfold may lie where we are.
    again = [sys.executable, "-P", "-m", "ringfold"]
    return _native.command(name, sys.argv[1:], again)
