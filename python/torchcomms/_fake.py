"""A backend without communication, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcomms._batch import P2POp
from torchcomms._call import Call
from torchcomms._hints import check_call_hints
from torchcomms._op_name import OpName
from torchcomms._options import BatchP2POptions, CommOptions
from torchcomms._registry import FAKE
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    from torchcomms._window import TorchCommWindow


class FakeBackend:
    """Rank 0 of 1. Every operation ends at once, and no tensor is read or written."""

    rank = 0
    size = 1
    name = FAKE
    version = "1"
    is_initialized = True
    works_end_unattended = False
    has_device = False
    has_windows = True

    @property
    def impl(self) -> FakeBackend:
        return self

    def issue(self, call: Call) -> TorchWork:
        if call.hints:
            check_call_hints(call.hints, call.op.name, call.op in (OpName.send, OpName.recv))
        return TorchWork()

    def issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork:
        if options.hints:
            check_call_hints(options.hints, OpName.batch_op_issue.name, True)
        return TorchWork()

    def split(self, ranks: list[int], name: str, timeout: float | None, options: CommOptions) -> FakeBackend:
        return FakeBackend()

    def new_window(self) -> TorchCommWindow:
        from torchcomms._window import FakeWindow

        return FakeWindow()

    def init_handle(self) -> str:
        raise RuntimeError("getInitHandle not implemented by the backend 'fake'")

    def reconfigure(self, uuid: int | str, handles: list[str] | set[str], timeout: float | None) -> TorchWork:
        raise RuntimeError("reconfigure not implemented by the backend 'fake'")

    def set_timeout(self, seconds: float) -> None:
        return

    def set_hints(self, hints: dict[str, str]) -> None:
        return

    def device_state(self) -> tuple[BaseException | None, int | None]:
        return None, 0

    def can_abort(self) -> bool:
        return False

    def abort(self) -> None:
        return

    def is_aborted(self) -> bool:
        return False

    def finalize(self) -> None:
        return
