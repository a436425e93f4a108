"""Backends written in Python."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torchcomms._batch import P2POp, P2POpType
from torchcomms._call import FIELDS, Call
from torchcomms._hints import warn_once
from torchcomms._op_name import OpName
from torchcomms._options import BatchP2POptions, CommOptions, Hints
from torchcomms._reduce_op import ReduceOp
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    import torch

    from torchcomms._window import TorchCommWindow


class TorchCommBackend:
    """The base class of backends written in Python; see :func:`torchcomms.register_backend`.

    A backend is constructed without arguments, then ``init`` is called. Operations get the arguments of ``TorchComm``'s methods by
    position, without hints and timeout, unchecked. If one returns None, it has ended; if it returns an object with ``wait()``, it
    ends when that returns.
    """

    def init(self, device: torch.device, name: str, options: CommOptions) -> None:
        """Initialises it with the options of ``new_comm``, including the store."""

    def finalize(self) -> None:
        """Ends it."""

    def get_rank(self) -> int:
        """This process's rank."""
        raise self._missing("get_rank")

    def get_size(self) -> int:
        """The number of ranks."""
        raise self._missing("get_size")

    def get_backend_name(self) -> str:
        """The result of ``TorchComm.get_backend()``."""
        return type(self).__name__

    def get_comm_name(self) -> str:
        """The communicator's name."""
        raise self._missing("get_comm_name")

    def split(self, ranks: list[int], name: str, options: CommOptions) -> TorchCommBackend | None:
        """A backend for some of the ranks."""
        raise self._missing("split")

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later operations."""

    def new_window(self) -> TorchCommWindow:
        """A new window."""
        raise self._missing("new_window")

    def send(self, tensor: torch.Tensor, dst: int, async_op: bool) -> Any:
        raise self._missing("send")

    def recv(self, tensor: torch.Tensor, src: int, async_op: bool) -> Any:
        raise self._missing("recv")

    def broadcast(self, tensor: torch.Tensor, root: int, async_op: bool) -> Any:
        raise self._missing("broadcast")

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp, async_op: bool) -> Any:
        raise self._missing("all_reduce")

    def reduce(self, tensor: torch.Tensor, root: int, op: ReduceOp, async_op: bool) -> Any:
        raise self._missing("reduce")

    def all_gather(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool) -> Any:
        raise self._missing("all_gather")

    def all_gather_v(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool) -> Any:
        raise self._missing("all_gather_v")

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, async_op: bool) -> Any:
        raise self._missing("all_gather_single")

    def reduce_scatter(
        self, output: torch.Tensor, input_list: list[torch.Tensor], op: ReduceOp, async_op: bool
    ) -> Any:
        raise self._missing("reduce_scatter")

    def reduce_scatter_v(
        self, output: torch.Tensor, input_list: list[torch.Tensor], op: ReduceOp, async_op: bool
    ) -> Any:
        raise self._missing("reduce_scatter_v")

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, op: ReduceOp, async_op: bool
    ) -> Any:
        raise self._missing("reduce_scatter_single")

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, async_op: bool) -> Any:
        raise self._missing("all_to_all_single")

    def all_to_all_v_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        async_op: bool,
    ) -> Any:
        raise self._missing("all_to_all_v_single")

    def all_to_all(
        self, output_tensor_list: list[torch.Tensor], input_tensor_list: list[torch.Tensor], async_op: bool
    ) -> Any:
        raise self._missing("all_to_all")

    def barrier(self, async_op: bool) -> Any:
        raise self._missing("barrier")

    def scatter(
        self, output_tensor: torch.Tensor, input_tensor_list: list[torch.Tensor], root: int, async_op: bool
    ) -> Any:
        raise self._missing("scatter")

    def gather(
        self, output_tensor_list: list[torch.Tensor], input_tensor: torch.Tensor, root: int, async_op: bool
    ) -> Any:
        raise self._missing("gather")

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, root: int, async_op: bool) -> Any:
        raise self._missing("gather_single")

    def _missing(self, what: str) -> RuntimeError:
        return RuntimeError(f"{what} not implemented by the backend {type(self).__name__}")


_OTHER_SIDE = {
    **{"input": "output", "output": "input"},
    **{"input_split_sizes": "output_split_sizes", "output_split_sizes": "input_split_sizes"},
}


def _arguments(call: Call) -> list[Any]:
    """The arguments of a backend's method before ``async_op``: the output before the input."""
    fields = FIELDS[call.op]
    return [
        getattr(call, _OTHER_SIDE[field] if _OTHER_SIDE.get(field) in fields else field) for field in fields
    ]


class PythonBackend:
    """Calls a backend written in Python. The backend checks the arguments."""

    # Its works end when they are waited for.
    works_end_unattended = False
    has_device = False

    def __init__(self, impl: TorchCommBackend) -> None:
        self._impl = impl

    @property
    def rank(self) -> int:
        return self._impl.get_rank()

    @property
    def size(self) -> int:
        return self._impl.get_size()

    @property
    def name(self) -> str:
        return self._impl.get_backend_name()

    @property
    def version(self) -> str:
        return str(getattr(self._impl, "__version__", "unknown"))

    @property
    def is_initialized(self) -> bool:
        return True

    @property
    def has_windows(self) -> bool:
        return type(self._impl).new_window is not TorchCommBackend.new_window

    @property
    def impl(self) -> TorchCommBackend:
        return self._impl

    def issue(self, call: Call) -> TorchWork:
        self._warn_of_hints(call.hints)
        op = OpName.all_gather_single if call.op is OpName.all_gather_p_exec else call.op
        return _work_of([getattr(self._impl, op.name)(*_arguments(call), call.async_op)])

    def issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork:
        self._warn_of_hints(options.hints)
        # All are started before any is waited for: each may need the others.
        started = [
            (self._impl.send if op.type is P2POpType.SEND else self._impl.recv)(op.tensor, op.peer, True)
            for op in ops
        ]
        return _work_of(started)

    def split(
        self, ranks: list[int], name: str, timeout: float | None, options: CommOptions
    ) -> PythonBackend | None:
        child = self._impl.split(ranks, name, options)
        return None if child is None else PythonBackend(child)

    def new_window(self) -> TorchCommWindow:
        return self._impl.new_window()

    def init_handle(self) -> str:
        raise RuntimeError(f"getInitHandle not implemented by the backend {self.name!r}")

    def reconfigure(self, uuid: int | str, handles: list[str] | set[str], timeout: float | None) -> TorchWork:
        raise RuntimeError(f"reconfigure not implemented by the backend {self.name!r}")

    def set_timeout(self, seconds: float) -> None:
        self._impl.set_timeout(timedelta(seconds=seconds))

    def set_hints(self, hints: dict[str, str]) -> None:
        self._warn_of_hints(hints)

    def _warn_of_hints(self, hints: Hints) -> None:
        for name in hints or ():
            warn_once(
                f"hint {name!r} has no effect: the backend {self.name!r} gets hints only when it is made"
            )

    def device_state(self) -> tuple[BaseException | None, int | None]:
        return None, 0

    def can_abort(self) -> bool:
        return False

    def abort(self) -> None:
        raise RuntimeError(f"abort not implemented by the backend {self.name!r}")

    def is_aborted(self) -> bool:
        return False

    def finalize(self) -> None:
        self._impl.finalize()


class _PendingWorks:
    """Works of a backend, which end when they are waited for."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self, timeout: float | None) -> bool:
        while self._works:
            self._works[0].wait()
            del self._works[0]
        return True

    def done(self) -> bool:
        return not self._works


def _work_of(returned: list[Any]) -> TorchWork:
    works = [work for work in returned if work is not None]
    if not works:
        return TorchWork()
    if len(works) == 1 and isinstance(works[0], TorchWork):
        return works[0]
    return TorchWork(_PendingWorks(works))
