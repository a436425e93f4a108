"""The operations of a communicator, as methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcomms._call import Call
from torchcomms._op_name import OpName
from torchcomms._options import Hints, OperationOptions, TimeoutLike, chosen
from torchcomms._reduce_op import ReduceOp
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    from torch import Tensor

OptionalHints = Hints | OperationOptions
Options = OperationOptions | None


class CommOperations:
    """The part of a communicator that turns each method into a :class:`Call`.

    ``options`` have hints and a timeout, too; they may stand in the place of ``hints``.
    """

    def _issue(self, call: Call) -> TorchWork:
        raise NotImplementedError

    def send(
        self,
        tensor: Tensor,
        dst: int,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Sends a tensor to the rank ``dst``."""
        return self._issue(Call(OpName.send, async_op, *chosen(hints, timeout, options), tensor, None, dst))

    def recv(
        self,
        tensor: Tensor,
        src: int,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Receives a tensor from the rank ``src``."""
        return self._issue(Call(OpName.recv, async_op, *chosen(hints, timeout, options), None, tensor, src))

    def broadcast(
        self,
        tensor: Tensor,
        root: int,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Copies the root's tensor to all ranks."""
        return self._issue(
            Call(OpName.broadcast, async_op, *chosen(hints, timeout, options), tensor, tensor, root)
        )

    def all_reduce(
        self,
        tensor: Tensor,
        op: ReduceOp,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Reduces the tensors of all ranks. Every rank gets the result, the same bits everywhere."""
        return self._issue(
            Call(OpName.all_reduce, async_op, *chosen(hints, timeout, options), tensor, tensor, reduce=op)
        )

    def reduce(
        self,
        tensor: Tensor,
        root: int,
        op: ReduceOp,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Reduces the tensors of all ranks. The root gets the result; the others' tensors do not change."""
        return self._issue(
            Call(OpName.reduce, async_op, *chosen(hints, timeout, options), tensor, tensor, root, op)
        )

    def all_gather(
        self,
        tensor_list: list[Tensor],
        tensor: Tensor,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Gathers the tensors of all ranks: ``tensor_list[r]`` is that of rank r."""
        return self._issue(
            Call(OpName.all_gather, async_op, *chosen(hints, timeout, options), tensor, tensor_list)
        )

    def all_gather_v(
        self,
        tensor_list: list[Tensor],
        tensor: Tensor,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """As :meth:`all_gather`; the ranks' tensors may differ in size."""
        return self._issue(
            Call(OpName.all_gather_v, async_op, *chosen(hints, timeout, options), tensor, tensor_list)
        )

    def all_gather_single(
        self,
        output: Tensor,
        input: Tensor,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Gathers the tensors of all ranks, concatenated in ``output``."""
        return self._issue(
            Call(OpName.all_gather_single, async_op, *chosen(hints, timeout, options), input, output)
        )

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: list[Tensor],
        op: ReduceOp,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Reduces the lists of all ranks. Rank r gets the result of all ``input_list[r]``."""
        return self._issue(
            Call(
                OpName.reduce_scatter,
                async_op,
                *chosen(hints, timeout, options),
                input_list,
                output,
                reduce=op,
            )
        )

    def reduce_scatter_v(
        self,
        output: Tensor,
        input_list: list[Tensor],
        op: ReduceOp,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """As :meth:`reduce_scatter`; the parts may differ in size."""
        return self._issue(
            Call(
                OpName.reduce_scatter_v,
                async_op,
                *chosen(hints, timeout, options),
                input_list,
                output,
                reduce=op,
            )
        )

    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: ReduceOp,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Reduces ``input`` of all ranks. Rank r gets part r of the result."""
        return self._issue(
            Call(
                OpName.reduce_scatter_single,
                async_op,
                *chosen(hints, timeout, options),
                input,
                output,
                reduce=op,
            )
        )

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Sends part r of ``input`` to rank r, and receives part r of ``output`` from it. All parts have one size."""
        return self._issue(
            Call(OpName.all_to_all_single, async_op, *chosen(hints, timeout, options), input, output)
        )

    def all_to_all_v_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """As :meth:`all_to_all_single`, with the sizes of the parts in rows of the first dimension."""
        call = Call(OpName.all_to_all_v_single, async_op, *chosen(hints, timeout, options), input, output)
        call.input_split_sizes, call.output_split_sizes = input_split_sizes, output_split_sizes
        return self._issue(call)

    def all_to_all(
        self,
        output_tensor_list: list[Tensor],
        input_tensor_list: list[Tensor],
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Sends ``input_tensor_list[r]`` to rank r, and receives ``output_tensor_list[r]`` from it."""
        return self._issue(
            Call(
                OpName.all_to_all,
                async_op,
                *chosen(hints, timeout, options),
                input_tensor_list,
                output_tensor_list,
            )
        )

    def barrier(
        self,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Waits until all ranks have called it."""
        return self._issue(Call(OpName.barrier, async_op, *chosen(hints, timeout, options)))

    def scatter(
        self,
        output_tensor: Tensor,
        input_tensor_list: list[Tensor],
        root: int,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Sends the root's ``input_tensor_list[r]`` to rank r. The lists of the others are ignored."""
        return self._issue(
            Call(
                OpName.scatter,
                async_op,
                *chosen(hints, timeout, options),
                input_tensor_list,
                output_tensor,
                root,
            )
        )

    def gather(
        self,
        output_tensor_list: list[Tensor],
        input_tensor: Tensor,
        root: int,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Gathers the tensors of all ranks in the root's list. The lists of the others are ignored."""
        return self._issue(
            Call(
                OpName.gather,
                async_op,
                *chosen(hints, timeout, options),
                input_tensor,
                output_tensor_list,
                root,
            )
        )

    def gather_single(
        self,
        output: Tensor,
        input: Tensor,
        root: int,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Gathers the tensors of all ranks at the root, concatenated in ``output``."""
        return self._issue(
            Call(OpName.gather_single, async_op, *chosen(hints, timeout, options), input, output, root)
        )
