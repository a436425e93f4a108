"""What an operation has to give: inputs that every rank can make for all ranks, and their combination by torch alone."""

from __future__ import annotations

import functools

import torch
from torchcomms import RedOpType, ReduceOp

SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS = SIGNED + UNSIGNED
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
FLOATS_OF_8_BITS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
REDUCED = INTEGERS + [torch.bool] + FLOATS + COMPLEX
MOVED = REDUCED + FLOATS_OF_8_BITS

PLAIN = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG]
BITWISE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]


def reductions(dtype: torch.dtype, rank: int) -> list[ReduceOp]:
    """All that this type can be combined by. The factors differ from rank to rank."""
    factors = [
        ReduceOp.PREMUL_SUM(factor(rank)),
        ReduceOp.PREMUL_SUM(torch.tensor(factor(rank))),
        ReduceOp.PREMUL_SUM(torch.tensor([factor(rank)])),
    ]
    if dtype in COMPLEX:
        return [ReduceOp.SUM, ReduceOp.AVG, *factors]
    if dtype in FLOATS:
        return PLAIN + factors
    return PLAIN + BITWISE


def factor(rank: int) -> float:
    """What a rank's values are multiplied by where a reduction does that. Exact in all types."""
    return 0.5 + rank


def values(dtype: torch.dtype, count: int, rank: int, seed: int, op: ReduceOp | None = None) -> torch.Tensor:
    """The values of a rank: the same ones on every rank."""
    if count > 10_000:
        return _many(dtype, count, rank, op is not None and op.type is RedOpType.AVG).clone()
    generator = torch.Generator().manual_seed(seed * 64 + rank)
    return _random(dtype, count, generator, op is not None and op.type is RedOpType.AVG)


@functools.lru_cache(maxsize=64)
def _many(dtype: torch.dtype, count: int, rank: int, is_mean: bool) -> torch.Tensor:
    return _random(dtype, count, torch.Generator().manual_seed(rank), is_mean)


def _random(dtype: torch.dtype, count: int, generator: torch.Generator, is_mean: bool) -> torch.Tensor:
    if dtype is torch.bool:
        # Mostly true, so that conjunctions are not all false.
        return torch.randint(0, 4, (count,), generator=generator) > 0
    if dtype in COMPLEX:
        return torch.randn(count, generator=generator, dtype=torch.complex128).to(dtype)
    if dtype in FLOATS:
        return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    size = dtype.itemsize
    bits = torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8)
    if not is_mean or dtype not in INTEGERS:
        return bits.view(dtype)
    # A mean is made of a sum, which has to fit.
    if dtype in UNSIGNED:
        bits.view(count, size)[:, size - 1] >>= 4
        return bits.view(dtype)
    return torch.div(bits.view(dtype), 16, rounding_mode="trunc")


def combined(inputs: list[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """The combination of all ranks' values: integers and booleans in their type, all else in double precision."""
    dtype = inputs[0].dtype
    if dtype is torch.bool:
        return _of_booleans(torch.stack(inputs), op.type)
    if dtype in INTEGERS:
        return _of_integers(inputs, op.type)
    wide = torch.stack([each.to(torch.complex128 if dtype in COMPLEX else torch.float64) for each in inputs])
    if op.type is RedOpType.PREMUL_SUM:
        return torch.stack([each * factor(rank) for rank, each in enumerate(wide)]).sum(0)
    match op.type:
        case RedOpType.SUM:
            return wide.sum(0)
        case RedOpType.AVG:
            return wide.sum(0) / len(inputs)
        case RedOpType.PRODUCT:
            return wide.prod(0)
        case RedOpType.MIN:
            return wide.amin(0)
        case RedOpType.MAX:
            return wide.amax(0)
    raise AssertionError(f"unknown result: {op} of {dtype}")


def _of_booleans(all_of: torch.Tensor, kind: RedOpType) -> torch.Tensor:
    if kind in (RedOpType.SUM, RedOpType.MAX, RedOpType.BOR):
        return all_of.any(0)
    if kind is RedOpType.BXOR:
        return all_of.sum(0) % 2 == 1
    return all_of.all(0)


def _of_integers(inputs: list[torch.Tensor], kind: RedOpType) -> torch.Tensor:
    dtype = inputs[0].dtype
    # Sums and products of 64 bits end in the right bits, whatever overflows.
    wide = [each.view(torch.int64) if dtype is torch.uint64 else each.to(torch.int64) for each in inputs]
    # Unsigned numbers of 64 bits are ordered as signed ones are whose highest bit is turned round.
    turn = torch.iinfo(torch.int64).min if dtype is torch.uint64 else 0
    match kind:
        case RedOpType.SUM:
            result = functools.reduce(torch.add, wide)
        case RedOpType.PRODUCT:
            result = functools.reduce(torch.mul, wide)
        case RedOpType.AVG:
            result = torch.div(functools.reduce(torch.add, wide), len(wide), rounding_mode="trunc")
        case RedOpType.MIN:
            result = functools.reduce(torch.minimum, [each ^ turn for each in wide]) ^ turn
        case RedOpType.MAX:
            result = functools.reduce(torch.maximum, [each ^ turn for each in wide]) ^ turn
        case RedOpType.BAND:
            result = functools.reduce(torch.bitwise_and, wide)
        case RedOpType.BOR:
            result = functools.reduce(torch.bitwise_or, wide)
        case RedOpType.BXOR:
            result = functools.reduce(torch.bitwise_xor, wide)
        case _:
            raise AssertionError(f"unknown result: {kind} of {dtype}")
    return result.view(torch.uint64) if dtype is torch.uint64 else result.to(dtype)


def difference(found: torch.Tensor, inputs: list[torch.Tensor], op: ReduceOp) -> str | None:
    """What is wrong with a combination of these inputs; None if it is right."""
    wanted = combined(inputs, op)
    dtype = inputs[0].dtype
    if found.dtype is not dtype or found.numel() != wanted.numel():
        return f"{found.numel()} of {found.dtype} instead of {wanted.numel()} of {dtype}"
    found = found.reshape(-1)
    if dtype is torch.bool or dtype in INTEGERS:
        return _first(found, wanted, bytes_of(found) != bytes_of(wanted))
    wide = found.to(wanted.dtype)
    if op.type in (RedOpType.MIN, RedOpType.MAX):
        return _first(wide, wanted, wide != wanted)
    # Each step may round by half of the last place of a partial result; two roundings more are for factor and mean.
    steps = len(inputs) + 2
    size = torch.stack([each.abs().to(torch.float64) for each in inputs])
    if op.type is RedOpType.PREMUL_SUM:
        size = torch.stack([each * factor(rank) for rank, each in enumerate(size)])
    size = size.prod(0) if op.type is RedOpType.PRODUCT else size.sum(0)
    size = size / len(inputs) if op.type is RedOpType.AVG else size
    limits = torch.finfo(dtype)
    is_near = (wide - wanted).abs() <= steps * (limits.eps * size + limits.tiny)
    # What is not a number is near to nothing.
    return _first(wide, wanted, ~is_near)


def _first(found: torch.Tensor, wanted: torch.Tensor, is_wrong: torch.Tensor) -> str | None:
    if not bool(is_wrong.any()):
        return None
    wrong = is_wrong.reshape(found.numel(), -1).any(1).nonzero().flatten()
    place = int(wrong[0])
    return f"{len(wrong)} of {found.numel()} are wrong, the first is [{place}] = {found[place]} instead of {wanted[place]}"


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, which compare whatever they mean."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def moved(found: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """What is wrong with values that were moved; None if they are the very bytes."""
    if found.dtype is not wanted.dtype or found.numel() != wanted.numel():
        return f"{found.numel()} of {found.dtype} instead of {wanted.numel()} of {wanted.dtype}"
    is_wrong = bytes_of(found) != bytes_of(wanted)
    if not bool(is_wrong.any()):
        return None
    return _first(bytes_of(found), bytes_of(wanted), is_wrong)


def name_of(op: ReduceOp | None) -> str:
    """How a reduction is called in a report."""
    return "" if op is None else str(op).removeprefix("ReduceOp.")
