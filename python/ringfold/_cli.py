"""The commands ``ringfold``, ``ccoip_master`` and ``pccl_master`` of the wheel."""

from __future__ import annotations

import signal
import sys


def ringfold() -> int:
    """The command ``ringfold``: see ``ringfold --help``."""
    return _run("ringfold")


def ccoip_master() -> int:
    """A master that needs no arguments."""
    return _run("ccoip_master")


def pccl_master() -> int:
    """``ccoip_master`` under the name of the package ``pccl``."""
    return _run("pccl_master")


def _run(name: str) -> int:
    # The command catches signals itself. Python's handler would raise a KeyboardInterrupt afterwards.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from ringfold import _native

    # To start itself as another process; -P because the current directory may contain a folder named ringfold.
    invocation = [sys.executable, "-P", "-m", "ringfold"]
    return _native.command(name, sys.argv[1:], invocation)
