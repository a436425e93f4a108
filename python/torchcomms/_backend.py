"""The backend interface of a communicator: the engine, the fake backend, or one written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torchcomms._call import Call
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    from torchcomms._batch import P2POp
    from torchcomms._options import BatchP2POptions, CommOptions
    from torchcomms._window import TorchCommWindow


class Backend(Protocol):
    """What a communicator calls after the pre-hooks.

    ``issue`` checks the arguments (RuntimeError at once), starts the operation, and, unless ``async_op`` is set, waits
    for its end. If the operation fails, ``wait()`` of its work raises the error.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str:
        """The result of ``get_backend()``."""
        ...

    @property
    def version(self) -> str: ...
    @property
    def is_initialized(self) -> bool:
        """False before the first reconfiguration of a communicator with ``enable_reconfigure``."""
        ...

    @property
    def impl(self) -> object:
        """The result of ``get_backend_impl()``."""
        ...

    @property
    def works_end_unattended(self) -> bool:
        """Whether asynchronous operations end, or fail, if no thread waits for them."""
        ...

    @property
    def has_device(self) -> bool:
        """Whether a device runs operations, for which the host does not wait."""
        ...

    @property
    def has_windows(self) -> bool:
        """Whether :meth:`new_window` works."""
        ...

    def issue(self, call: Call) -> TorchWork: ...
    def issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork: ...
    def split(
        self, ranks: list[int], name: str, timeout: float | None, options: CommOptions
    ) -> Backend | None:
        """None if ``ranks`` is empty. ``options`` are those of the new communicator."""
        ...

    def new_window(self) -> TorchCommWindow: ...
    def init_handle(self) -> str: ...
    def reconfigure(
        self, uuid: int | str, handles: list[str] | set[str], timeout: float | None
    ) -> TorchWork: ...
    def set_timeout(self, seconds: float) -> None: ...
    def set_hints(self, hints: dict[str, str]) -> None:
        """Applies checked hints, which the options hold already."""
        ...

    def device_state(self) -> tuple[BaseException | None, int | None]:
        """Why the device's group has failed, and how many operations are unfinished; None if that is unknown."""
        ...

    def can_abort(self) -> bool: ...
    def abort(self) -> None: ...
    def is_aborted(self) -> bool: ...
    def finalize(self) -> None:
        """Local: never waits, and never raises because other ranks left."""
        ...
