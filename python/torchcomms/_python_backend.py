"""Backends written in Python."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torchcomms._batch import P2POp, P2POpType
from torchcomms._call import FIELDS, Call
from torchcomms._op_name import OpName
from torchcomms._options import BatchP2POptions, CommOptions
from torchcomms._reduce_op import ReduceOp
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    import torch

    from torchcomms._window import TorchCommWindow


class TorchCommBackend:
    """The base of backends written in Python; see :func:`torchcomms.register_backend`.

    A backend is constructed without arguments, and then initialised. Operations get what ``TorchComm``'s methods got, by
    position, without hints and timeout, unchecked. One that returns None has ended; one that returns an object with
    ``wait()`` ends when that returns.
    """

    def init(self, device: torch.device, name: str, options: CommOptions) -> None:
        """Begins. The options are those of ``new_comm``, the store included."""

    def finalize(self) -> None:
        """Ends."""

    def get_rank(self) -> int:
        """This process's number."""
        raise self._lacks("get_rank")

    def get_size(self) -> int:
        """How many ranks there are."""
        raise self._lacks("get_size")

    def get_backend_name(self) -> str:
        """What ``TorchComm.get_backend()`` says."""
        return type(self).__name__

    def get_comm_name(self) -> str:
        """What the communicator is called."""
        raise self._lacks("get_comm_name")

    def split(self, ranks: list[int], name: str, options: CommOptions) -> TorchCommBackend | None:
        """A backend for some of the ranks."""
        raise self._lacks("split")

    def set_timeout(self, timeout: timedelta) -> None:
        """How long operations may take from now on."""

    def new_window(self) -> TorchCommWindow:
        """A window."""
        raise self._lacks("new_window")

    def send(self, tensor: torch.Tensor, dst: int, async_op: bool) -> Any:
        raise self._lacks("send")

    def recv(self, tensor: torch.Tensor, src: int, async_op: bool) -> Any:
        raise self._lacks("recv")

    def broadcast(self, tensor: torch.Tensor, root: int, async_op: bool) -> Any:
        raise self._lacks("broadcast")

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp, async_op: bool) -> Any:
        raise self._lacks("all_reduce")

    def reduce(self, tensor: torch.Tensor, root: int, op: ReduceOp, async_op: bool) -> Any:
        raise self._lacks("reduce")

    def all_gather(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool) -> Any:
        raise self._lacks("all_gather")

    def all_gather_v(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool) -> Any:
        raise self._lacks("all_gather_v")

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, async_op: bool) -> Any:
        raise self._lacks("all_gather_single")

    def reduce_scatter(
        self, output: torch.Tensor, input_list: list[torch.Tensor], op: ReduceOp, async_op: bool
    ) -> Any:
        raise self._lacks("reduce_scatter")

    def reduce_scatter_v(
        self, output: torch.Tensor, input_list: list[torch.Tensor], op: ReduceOp, async_op: bool
    ) -> Any:
        raise self._lacks("reduce_scatter_v")

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, op: ReduceOp, async_op: bool
    ) -> Any:
        raise self._lacks("reduce_scatter_single")

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor, async_op: bool) -> Any:
        raise self._lacks("all_to_all_single")

    def all_to_all_v_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        async_op: bool,
    ) -> Any:
        raise self._lacks("all_to_all_v_single")

    def all_to_all(
        self, output_tensor_list: list[torch.Tensor], input_tensor_list: list[torch.Tensor], async_op: bool
    ) -> Any:
        raise self._lacks("all_to_all")

    def barrier(self, async_op: bool) -> Any:
        raise self._lacks("barrier")

    def scatter(
        self, output_tensor: torch.Tensor, input_tensor_list: list[torch.Tensor], root: int, async_op: bool
    ) -> Any:
        raise self._lacks("scatter")

    def gather(
        self, output_tensor_list: list[torch.Tensor], input_tensor: torch.Tensor, root: int, async_op: bool
    ) -> Any:
        raise self._lacks("gather")

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, root: int, async_op: bool) -> Any:
        raise self._lacks("gather_single")

    def _lacks(self, what: str) -> RuntimeError:
        return RuntimeError(f"{what} not implemented by the backend {type(self).__name__}")


_OTHER_SIDE = {
    **{"input": "output", "output": "input"},
    **{"input_split_sizes": "output_split_sizes", "output_split_sizes": "input_split_sizes"},
}


def _arguments(call: Call) -> list[Any]:
    """What a backend is given, before ``async_op``: of two sides the output first."""
    fields = FIELDS[call.op]
    return [
        getattr(call, _OTHER_SIDE[field] if _OTHER_SIDE.get(field) in fields else field) for field in fields
    ]


class PythonBackend:
    """Our side of a backend written in Python. Nothing is checked here: the backend knows what it takes."""

    def __init__(self, impl: TorchCommBackend, options: CommOptions) -> None:
        self._impl = impl
        self._options = options

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
    def impl(self) -> TorchCommBackend:
        return self._impl

    def issue(self, call: Call) -> TorchWork:
        op = OpName.all_gather_single if call.op is OpName.all_gather_p_exec else call.op
        return _work_of([getattr(self._impl, op.name)(*_arguments(call), call.async_op)])

    def issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork:
        # All are begun before any is waited for: each may need the others.
        begun = [
            (self._impl.send if op.type is P2POpType.SEND else self._impl.recv)(op.tensor, op.peer, True)
            for op in ops
        ]
        return _work_of(begun)

    def split(self, ranks: list[int], name: str, timeout: float | None) -> PythonBackend | None:
        child = self._impl.split(ranks, name, self._options)
        return None if child is None else PythonBackend(child, self._options)

    def new_window(self) -> TorchCommWindow:
        return self._impl.new_window()

    def init_handle(self) -> str:
        raise RuntimeError(f"getInitHandle not implemented by the backend {self.name!r}")

    def reconfigure(self, uuid: int | str, handles: list[str] | set[str], timeout: float | None) -> TorchWork:
        raise RuntimeError(f"reconfigure not implemented by the backend {self.name!r}")

    def set_timeout(self, seconds: float) -> None:
        self._impl.set_timeout(timedelta(seconds=seconds))

    def can_abort(self) -> bool:
        return False

    def abort(self) -> None:
        raise RuntimeError(f"abort not implemented by the backend {self.name!r}")

    def is_aborted(self) -> bool:
        return False

    def finalize(self) -> None:
        self._impl.finalize()


class _Waited:
    """Ends when it is waited for."""

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
    return TorchWork(_Waited(works))
