"""Masters within a Python process."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from types import TracebackType

from ringfold import _native


class MasterNode:
    """A master: peers meet at it, and it decides for all of them. It never sees their data.

    ``listen_address`` is ``"host:port"``; port 0 takes a free one, and :attr:`address` tells which. ``token`` is the
    secret that peers must know to join (default: ``PCCL_JOIN_TOKEN``).

    ``run()`` serves from a native thread. A script that only calls ``run()`` serves on until Ctrl-C: the end of the
    script, and the destructor, wait until the master was interrupted. A script that dies of an exception takes its
    master with it. As a context manager it runs on entry and ends on exit.

        >>> with MasterNode("127.0.0.1:0") as master:
        ...     master.address.startswith("127.0.0.1:")
        True
    """

    def __init__(self, listen_address: str = "0.0.0.0:48148", *, token: str | None = None) -> None:
        self._native = _native.Master(listen_address, token)
        self._runs = False
        self._process = os.getpid()

    def run(self) -> None:
        """Listens and serves. A busy port: ``INVALID_USAGE``; a second time: ``INVALID_ARGUMENT``."""
        self._native.run()
        self._runs = True
        _living.add(self)

    @property
    def address(self) -> str:
        """Where it listens, with the port that was taken for port 0."""
        addresses = self._native.addresses()
        if not addresses:
            raise RuntimeError("this master does not listen yet: call run()")
        return addresses[0]

    def interrupt(self) -> None:
        """Has it end soon. May be called again."""
        self._native.interrupt()

    def wait(self) -> None:
        """Waits until it has ended; then its port is free. Never run: ``INVALID_USAGE``."""
        self._native.wait()

    def __enter__(self) -> MasterNode:
        self.run()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process == os.getpid():
            self.interrupt()
            self.wait()

    def __del__(self) -> None:
        # The constructor may have failed.
        if getattr(self, "_runs", False):
            self._serve_on()

    def _serve_on(self) -> None:
        """Waits for the end, which Ctrl-C brings about."""
        self._runs = False
        if self._process != os.getpid():
            # A forked child has the object, and not the master.
            return
        try:
            self._native.wait()
        except KeyboardInterrupt:
            self._native.interrupt()
            self._native.wait()

    def __repr__(self) -> str:
        return f"MasterNode({', '.join(self._native.addresses()) or 'not running'})"


_living: weakref.WeakSet[MasterNode] = weakref.WeakSet()


@atexit.register
def _serve_all() -> None:
    # While the interpreter is whole: later there would be no Ctrl-C.
    for master in list(_living):
        if hasattr(sys, "last_value"):
            # The script has died, of Ctrl-C perhaps: nobody expects it to serve on.
            master.interrupt()
        if master._runs:
            master._serve_on()
