"""c10d's operations, as calls of a communicator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import ReduceOp as C10dReduceOp

from torchcomms import _compile
from torchcomms._any_source import AnySource
from torchcomms._batch import P2POp, P2POpType
from torchcomms._c10d_work import C10dWork, FutureCompleter, ThreadedCompleter
from torchcomms._dynamo import outside_of_dynamo
from torchcomms._hints import TAG
from torchcomms._monitored_barrier import MonitoredBarrier
from torchcomms._op_name import OpName
from torchcomms._options import seconds
from torchcomms._reduce_op import RedOpType, ReduceOp
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    from ringfold import _native

    from torchcomms._comm import TorchComm

Tensor = torch.Tensor
Tensors = Sequence[torch.Tensor]
MaybeWork = C10dWork | None
"""None for a synchronous call: the operation has ended."""


@outside_of_dynamo
class Operations:
    """The methods that torch calls on a backend, with aliases for the names of torch 2.11.

    The communicator checks the arguments. Tensors that are not contiguous are copied, and their results copied back, where c10d
    allows them.
    """

    _comm: TorchComm

    def _init_operations(self, comm: TorchComm) -> None:
        # Torch has works and gradients of its own.
        self._comm = _compile.plain(comm)
        self._in_order = FutureCompleter()
        self._any_order = ThreadedCompleter()
        self._batch: _Batch | None = None
        self._issued = 0
        self._any_source_lock = threading.Lock()
        self._monitored = MonitoredBarrier()

    # --- in place --------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any = None) -> MaybeWork:
        """Copies the root's tensor to all ranks."""
        copies = _Copies()
        tensor = copies.both(_one(tensors, "broadcast"))
        return self._issue(self._comm.broadcast, (tensor, _root(opts)), opts, tensors, copies)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> MaybeWork:
        """Reduces the tensors of all ranks; every rank gets the result."""
        given = _one(tensors, "allreduce")
        if given.is_sparse:
            return self._issue(self._comm.all_reduce, (given, _reduce_op(opts)), opts, tensors, None)
        if opts is not None and not opts.asyncOp and self._batch is None and _is_dense(given):
            # The fast path of most calls.
            self._issued += 1
            self._comm.all_reduce(given, _reduce_op(opts), False, None, _timeout(opts))
            return None
        copies = _Copies()
        tensor = copies.both(given)
        return self._issue(self._comm.all_reduce, (tensor, _reduce_op(opts)), opts, tensors, copies)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> MaybeWork:
        """Several at once, as one work."""
        copies, reduce = _Copies(), _reduce_op(opts)
        calls = [(self._comm.all_reduce, (copies.both(tensor), reduce)) for tensor in tensors]
        return self._issue_all(calls, opts, tensors, copies)

    def reduce(self, tensors: Tensors, opts: Any = None) -> MaybeWork:
        """Reduces the tensors of all ranks; the root gets the result."""
        copies, given = _Copies(), _one(tensors, "reduce")
        tensor = given if given.is_sparse else copies.both(given)
        arguments = (tensor, _root(opts), _reduce_op(opts))
        return self._issue(self._comm.reduce, arguments, opts, tensors, copies)

    # --- gathers and scatters --------------------------------------------------------------------------------------

    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> MaybeWork:
        """Gathers the tensors of all ranks in a list. They may differ in size."""
        copies = _Copies()
        call = self._all_gather(_one_list(output_lists, "allgather"), _one(inputs, "allgather"), copies)
        return self._issue(*call, opts, output_lists[0], copies)

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> MaybeWork:
        """Several at once; ``output_lists[r][i]`` is rank r's ``inputs[i]``."""
        if len(output_lists) != self._comm.get_size():
            raise ValueError(f"invalid output lists: {len(output_lists)}, but one per rank is needed")
        copies = _Copies()
        calls = [
            self._all_gather([outputs[index] for outputs in output_lists], tensor, copies)
            for index, tensor in enumerate(inputs)
        ]
        results = [tensor for outputs in output_lists for tensor in outputs]
        return self._issue_all(calls, opts, results, copies)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> MaybeWork:
        """Gathers the tensors of all ranks, concatenated."""
        copies = _Copies()
        arguments = (copies.out(output), _dense(input))
        return self._issue(self._comm.all_gather_single, arguments, opts, (output,), copies)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> MaybeWork:
        """Several at once, as one work."""
        copies = _Copies()
        calls = [
            (self._comm.all_gather_single, (copies.out(output), _dense(input)))
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._issue_all(calls, opts, outputs, copies)

    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> MaybeWork:
        """Gathers the tensors of all ranks at the root; the others pass no lists."""
        copies = _Copies()
        root = _root(opts)
        outputs = _one_list(output_lists, "gather") if self._comm.get_rank() == root else ()
        arguments = ([copies.out(output) for output in outputs], _dense(_one(inputs, "gather")), root)
        return self._issue(self._comm.gather, arguments, opts, outputs, copies)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> MaybeWork:
        """Gathers the tensors of all ranks at the root, concatenated."""
        copies = _Copies()
        arguments = (copies.out(output), _dense(input), _root(opts))
        return self._issue(self._comm.gather_single, arguments, opts, (output,), copies)

    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any = None) -> MaybeWork:
        """Sends tensor r of the root's list to rank r; the others pass no lists."""
        copies = _Copies()
        root = _root(opts)
        inputs = _one_list(input_lists, "scatter") if self._comm.get_rank() == root else ()
        arguments = (copies.out(_one(outputs, "scatter")), [_dense(tensor) for tensor in inputs], root)
        return self._issue(self._comm.scatter, arguments, opts, outputs, copies)

    def reduce_scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any = None) -> MaybeWork:
        """Reduces the lists of all ranks; rank r gets result r. The tensors may differ in size."""
        copies = _Copies()
        inputs = [_dense(tensor) for tensor in _one_list(input_lists, "reduce_scatter")]
        output = copies.out(_one(outputs, "reduce_scatter"))
        is_even = len({tensor.numel() for tensor in inputs}) <= 1
        method = self._comm.reduce_scatter if is_even else self._comm.reduce_scatter_v
        return self._issue(method, (output, inputs, _reduce_op(opts)), opts, outputs, copies)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> MaybeWork:
        """Reduces the tensors of all ranks; rank r gets part r of the result."""
        copies = _Copies()
        arguments = (copies.out(output), _dense(input), _reduce_op(opts))
        return self._issue(self._comm.reduce_scatter_single, arguments, opts, (output,), copies)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> MaybeWork:
        """Several at once, as one work."""
        copies, reduce = _Copies(), _reduce_op(opts)
        calls = [
            (self._comm.reduce_scatter_single, (copies.out(output), _dense(input), reduce))
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._issue_all(calls, opts, outputs, copies)

    # --- all to all ------------------------------------------------------------------------------------------------

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> MaybeWork:
        """Sends tensor r to rank r, and receives output r from it."""
        copies = _Copies()
        arguments = ([copies.out(output) for output in outputs], [_dense(tensor) for tensor in inputs])
        return self._issue(self._comm.all_to_all, arguments, opts, outputs, copies)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> MaybeWork:
        """Sends part r to rank r, and receives part r of the output from it.

        Sizes are rows of the first dimension; without them, all parts are equal.
        """
        copies = _Copies()
        buffers = (copies.out(output), _dense(input))
        if not output_split_sizes and not input_split_sizes:
            return self._issue(self._comm.all_to_all_single, buffers, opts, (output,), copies)
        sizes = (
            list(output_split_sizes) or _even(output, self._comm.get_size()),
            list(input_split_sizes) or _even(input, self._comm.get_size()),
        )
        return self._issue(self._comm.all_to_all_v_single, (*buffers, *sizes), opts, (output,), copies)

    # --- transfers -------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> MaybeWork:
        """Sends a tensor to a rank."""
        tensor = _dense(_one(tensors, "send"))
        if self._batch is not None:
            self._batch.transfers.append(P2POp(P2POpType.SEND, tensor, peer, tag))
            return None
        work = self._comm.send(tensor, peer, True, _tagged(tag))
        return C10dWork([work], list(tensors), self._any_order)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> MaybeWork:
        """Receives a tensor from a rank."""
        copies = _Copies()
        tensor = copies.out(_one(tensors, "recv"))
        if self._batch is not None:
            self._batch.transfers.append(P2POp(P2POpType.RECV, tensor, peer, tag))
            self._batch.add(tensors, copies)
            return None
        work = self._comm.recv(tensor, peer, True, _tagged(tag))
        return C10dWork([work], list(tensors), self._any_order, copies.finish)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> MaybeWork:
        """Receives a tensor from the first rank that sends one with this tag; ``source_rank()`` of the work is that rank.

        It does not receive empty tensors.
        """
        if self._batch is not None:
            raise RuntimeError("unsupported: a receive from any rank cannot be coalesced")
        comm, group = self._comm, self._group()
        if group is None:
            raise RuntimeError(
                f"unsupported by backend {comm.get_backend()!r}: receive from any rank; pass a source"
            )
        copies = _Copies()
        tensor = copies.out(_one(tensors, "recv_anysource"))
        if tensor.is_cuda and not tag:
            raise RuntimeError(
                "unsupported for CUDA tensors: a receive from any rank without a tag. Name the source, or send and receive "
                "with a tag"
            )

        def recv(source: int) -> TorchWork:
            return comm.recv(tensor, source, True, _tagged(tag))

        pending = AnySource(group, tag, recv, self._any_source_lock, comm._timeout)
        work = TorchWork(pending)
        if comm._ends_process:
            comm._supervise(work, OpName.recv, time.monotonic(), True)
        return C10dWork([work], list(tensors), self._any_order, copies.finish, lambda: pending.source)

    # --- barriers --------------------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> MaybeWork:
        """Waits until all ranks have called it."""
        if opts is not None and not opts.asyncOp and self._batch is None:
            self._issued += 1
            self._comm.barrier(False, None, _timeout(opts))
            return None
        return self._issue(self._comm.barrier, (), opts, (), None)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error on rank 0 names the missing ranks. ``opts`` are barrier options, or a timeout."""
        timeout = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
        limit = seconds(timeout if timeout is not None and timeout > timedelta(0) else self._comm._timeout)
        group = self._group()
        if group is not None:
            self._monitored.wait(group, limit or 600.0, wait_all_ranks)
        elif self._comm.get_size() > 1:
            self._comm.barrier(False, None, timeout)

    # --- several at once -------------------------------------------------------------------------------------------

    def start_coalescing(self) -> None:
        """Collects what is issued from here on into one work, which :meth:`end_coalescing` returns."""
        if self._batch is not None:
            raise RuntimeError("start_coalescing() was called twice without end_coalescing()")
        self._batch = _Batch()

    def end_coalescing(self) -> C10dWork:
        """The work of all that was issued since :meth:`start_coalescing`."""
        batch, self._batch = self._batch, None
        if batch is None:
            raise RuntimeError("end_coalescing() was called without start_coalescing()")
        works = batch.works + _issue_transfers(self._comm, batch.transfers)
        completer = self._any_order if batch.transfers else self._in_order
        return C10dWork(works, batch.results, completer, batch.finish)

    def _group(self) -> _native.Group | None:
        """The engine's group, for an operation on the host; None for other backends."""
        group: _native.Group | None = getattr(self._comm.get_backend_impl(), "_group", None)
        if group is not None:
            from torchcomms._device import refuse_capture

            refuse_capture("this operation")
        return group

    # --- issuing ---------------------------------------------------------------------------------------------------

    def _all_gather(
        self, outputs: Tensors, input: Tensor, copies: _Copies
    ) -> tuple[Callable[..., TorchWork], tuple[Any, ...]]:
        buffers = [copies.out(output) for output in outputs]
        is_even = all(tensor.numel() == input.numel() for tensor in buffers)
        return (self._comm.all_gather if is_even else self._comm.all_gather_v), (buffers, _dense(input))

    def _issue(
        self,
        method: Callable[..., TorchWork],
        arguments: tuple[Any, ...],
        opts: Any,
        results: Tensors,
        copies: _Copies | None,
    ) -> MaybeWork:
        is_async = opts is None or opts.asyncOp or self._batch is not None
        self._issued += 1
        work = method(*arguments, is_async, None, _timeout(opts))
        finish = copies.finish if copies is not None else None
        if not is_async:
            if finish is not None:
                finish()
            return None
        if self._batch is not None:
            self._batch.works.append(work)
            self._batch.add(results, copies)
            return None
        return C10dWork([work], list(results), self._in_order, finish)

    def _issue_all(
        self,
        calls: list[tuple[Callable[..., TorchWork], tuple[Any, ...]]],
        opts: Any,
        results: Tensors,
        copies: _Copies,
    ) -> MaybeWork:
        timeout = _timeout(opts)
        self._issued += len(calls)
        works = [method(*arguments, True, None, timeout) for method, arguments in calls]
        if self._batch is not None:
            self._batch.works += works
            self._batch.add(results, copies)
            return None
        work = C10dWork(works, list(results), self._in_order, copies.finish)
        if opts is None or opts.asyncOp:
            return work
        work.wait()
        return None

    # The names of torch 2.11.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single


class _Copies:
    """Contiguous copies of tensors that are not, and the copies back."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] | None = None

    def out(self, tensor: Tensor) -> Tensor:
        """The tensor, or a new one for its result."""
        if _is_dense(tensor):
            return tensor
        return self._add(tensor, torch.empty_like(tensor, memory_format=torch.contiguous_format))

    def both(self, tensor: Tensor) -> Tensor:
        """The tensor, or a copy for input and result."""
        return tensor if _is_dense(tensor) else self._add(tensor, _dense(tensor))

    @property
    def finish(self) -> Callable[[], None] | None:
        """Copies the results back; None if there are no copies."""
        return None if self._pairs is None else self._copy_back

    def _add(self, tensor: Tensor, copy: Tensor) -> Tensor:
        if self._pairs is None:
            self._pairs = []
        self._pairs.append((tensor, copy))
        return copy

    def _copy_back(self) -> None:
        for tensor, copy in self._pairs or ():
            tensor.data.copy_(copy)


class _Batch:
    """The operations between start_coalescing and end_coalescing."""

    def __init__(self) -> None:
        self.works: list[TorchWork] = []
        self.transfers: list[P2POp] = []
        self.results: list[Tensor] = []
        self._finishes: list[Callable[[], None]] = []

    def add(self, results: Tensors, copies: _Copies | None) -> None:
        self.results += results
        if copies is not None and copies.finish is not None:
            self._finishes.append(copies.finish)

    @property
    def finish(self) -> Callable[[], None] | None:
        return self._run_all if self._finishes else None

    def _run_all(self) -> None:
        for finish in self._finishes:
            finish()


def _issue_transfers(comm: TorchComm, transfers: list[P2POp]) -> list[TorchWork]:
    if not transfers:
        return []
    batch = comm.batch_op_create()
    batch.ops = transfers
    return [batch.issue(True)]


_REDUCE_OPS = {
    getattr(C10dReduceOp.RedOpType, kind.name): ReduceOp(kind)
    for kind in RedOpType
    if kind is not RedOpType.PREMUL_SUM
}


def _reduce_op(opts: Any) -> ReduceOp:
    return ReduceOp.SUM if opts is None else reduce_op_of(opts.reduceOp)


def reduce_op_of(reduce: Any) -> ReduceOp:
    """A reduction of torch.distributed as one of torchcomms."""
    if isinstance(reduce, C10dReduceOp.RedOpType):
        reduce = C10dReduceOp(reduce)
    known = _REDUCE_OPS.get(reduce.op)
    if known is not None:
        return known
    _, factor = reduce.__getstate__()
    return ReduceOp.PREMUL_SUM(factor)


def _root(opts: Any) -> int:
    root: int = opts.rootRank if opts is not None else 0
    return root


def _timeout(opts: Any) -> timedelta | None:
    """The timeout of one operation; None if c10d passes none, which is negative there."""
    if opts is None:
        return None
    timeout: timedelta = opts.timeout
    return timeout if timeout.days >= 0 else None


def _one(tensors: Tensors, op: str) -> Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"invalid arguments of {op}: {len(tensors)} tensors, but one is needed")
    return tensors[0]


def _one_list(lists: Sequence[Tensors], op: str) -> Tensors:
    if len(lists) != 1:
        raise ValueError(f"invalid arguments of {op}: {len(lists)} lists of tensors, but one is needed")
    return lists[0]


def _is_dense(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        raise RuntimeError(f"unsupported tensor layout {tensor.layout}: convert it by to_dense()")
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _dense(tensor: Tensor) -> Tensor:
    return tensor if _is_dense(tensor) else tensor.detach().resolve_conj().resolve_neg().contiguous()


def _even(tensor: Tensor, parts: int) -> list[int]:
    rows = tensor.shape[0] if tensor.dim() else 0
    if rows % parts:
        raise RuntimeError(f"invalid tensor: {rows} rows cannot be split evenly among {parts} ranks")
    return [rows // parts] * parts


def _tagged(tag: int) -> dict[str, str]:
    # Also 0: the communicator may have another tag for transfers without one.
    return {TAG: str(tag)}
