"""What a communicator stands on: our engine, the fake one, or a backend written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torchcomms._call import Call
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    from torchcomms._batch import P2POp
    from torchcomms._options import BatchP2POptions
    from torchcomms._window import TorchCommWindow


class Backend(Protocol):
    """The road that every call takes after the pre-hooks.

    ``issue`` checks the arguments (RuntimeError at once), begins the operation, and, unless ``async_op`` is set, waits
    for its end. A failure of the operation itself is kept in the work, whose ``wait()`` raises it.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str:
        """What ``get_backend()`` says."""
        ...

    @property
    def version(self) -> str: ...
    @property
    def is_initialized(self) -> bool:
        """Whether there is anything to finalize: not while a communicator waits for its first reconfiguration."""
        ...

    @property
    def impl(self) -> object:
        """What ``get_backend_impl()`` gives."""
        ...

    def issue(self, call: Call) -> TorchWork: ...
    def issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork: ...
    def split(self, ranks: list[int], name: str, timeout: float | None) -> Backend | None:
        """None where ``ranks`` is empty."""
        ...

    def new_window(self) -> TorchCommWindow: ...
    def init_handle(self) -> str: ...
    def reconfigure(
        self, uuid: int | str, handles: list[str] | set[str], timeout: float | None
    ) -> TorchWork: ...
    def set_timeout(self, seconds: float) -> None: ...
    def can_abort(self) -> bool: ...
    def abort(self) -> None: ...
    def is_aborted(self) -> bool: ...
    def finalize(self) -> None:
        """Local: never waits, never raises because others left."""
        ...
