"""A reduce-scatter of float32 tensors whose data travels as bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchcomms._comm import TorchComm
from torchcomms._reduce_op import RedOpType, ReduceOp
from torchcomms._work import TorchWork

_LOW_BITS = 1 << 16


def reduce_scatter_quantized(
    comm: TorchComm,
    output: torch.Tensor,
    input: torch.Tensor,
    op: ReduceOp,
    seed: int | torch.Tensor | None,
    async_op: bool,
) -> tuple[TorchWork, Callable[[], None]]:
    """Issues it: the work, and what has to be called once the work has ended, which writes ``output``.

    Values are rounded to bfloat16 at random, up or down in proportion to the distance, so that sums are right on average. They
    are added as float32.
    """
    size = comm.get_size()
    for name, tensor in (("output", output), ("input", input)):
        if tensor.dtype is not torch.float32:
            raise RuntimeError(
                f"unsupported type {tensor.dtype} of {name} in reduce_scatter_quantized: must be float32"
            )
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name} of reduce_scatter_quantized is not contiguous")
    if op.type not in (RedOpType.SUM, RedOpType.AVG):
        raise RuntimeError(
            f"unsupported reduction {op.type.name} in reduce_scatter_quantized: must be SUM or AVG"
        )
    if input.numel() != output.numel() * size:
        raise RuntimeError(
            f"invalid size of input: {input.numel()} elements, but {size} ranks with {output.numel()} elements of output need "
            f"{output.numel() * size}"
        )
    sent = round_at_random(input.detach().view(-1), seed)
    received = torch.empty_like(sent)
    work = comm.all_to_all_single(received, sent, async_op)

    def finish() -> None:
        total = received.view(size, -1).float().sum(0)
        if op.type is RedOpType.AVG:
            total /= size
        output.data.copy_(total.view(output.shape))

    return work, finish


def round_at_random(values: torch.Tensor, seed: int | torch.Tensor | None = None) -> torch.Tensor:
    """Float32 values as bfloat16, each rounded up or down at random. Infinities and NaN stay what they are."""
    generator = None
    if seed is not None:
        generator = torch.Generator(values.device)
        generator.manual_seed(int(seed))
    noise = torch.randint(
        0, _LOW_BITS, values.shape, dtype=torch.int32, device=values.device, generator=generator
    )
    # The upper half of a float32 is its bfloat16, rounded towards zero.
    rounded = (values.view(torch.int32) + noise) & -_LOW_BITS
    return torch.where(values.isfinite(), rounded.view(torch.float32), values).to(torch.bfloat16)
