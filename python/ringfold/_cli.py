"""The commands ``ringfold``, ``ccoip_master`` and ``pccl_master`` of the wheel."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def ringfold() -> NoReturn:
    """The command ``ringfold``: see ``ringfold --help``."""
    _run("ringfold")


def ccoip_master() -> NoReturn:
    """A master that needs no arguments."""
    _run("ccoip_master")


def pccl_master() -> NoReturn:
    """``ccoip_master`` under the name of the package ``pccl``."""
    _run("pccl_master")


def _run(name: str) -> NoReturn:
    # The command catches signals itself. Python's handler would raise a KeyboardInterrupt afterwards.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from ringfold import _native

    # To start itself as another process; -P because the current directory may contain a folder named ringfold.
    invocation = [sys.executable, "-P", "-m", "ringfold"]
    code = _native.command(name, sys.argv[1:], invocation)
    # Without the destructors of libraries: a thread that was left behind by Ctrl-C may still use them, and would crash.
    os._exit(code)
