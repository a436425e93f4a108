"""distwrap: windows, quantized reduce-scatter, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks
from test_distwrap import _done
from torchcomms import distwrap as dist
from torchcomms.distwrap._quantized import round_at_random


def use_windows() -> list[float]:
    dist.init_process_group("gloo", use_torchcomms=True)
    group = dist.new_group([1, 3])
    odd = dist.get_rank() % 2 == 1
    chosen: Any = group if odd else None
    if not odd:
        with pytest.raises(RuntimeError, match="not a member"):
            dist.new_window(group)
    inbox = torch.zeros(4)
    # The default group needs all ranks, and the group its own.
    for one in (None, chosen):
        if one is None and chosen is None and inbox.any():
            break
        rank, size = dist.get_rank(one), dist.get_world_size(one)
        window = dist.new_window(one)
        window.tensor_register(inbox)
        window.put(torch.ones(1) * (rank + 1), (rank + 1) % size, rank, False)
        window.signal((rank + 1) % size, False)
        window.wait_signal((rank - 1) % size, False)
        dist.barrier(one)
        window.tensor_deregister()
    with pytest.raises(RuntimeError, match="'nccl'.*'gloo'"):
        dist.new_window(None, "nccl")
    assert dist.get_mem_allocator(None, "cpu") is None
    again = dist.new_window(None, "gloo", tensor=torch.zeros(2))
    assert again.get_size() == 8
    again.tensor_deregister()
    dist.destroy_process_group()
    return inbox.tolist()


def test_windows_belong_to_groups(ranks: Ranks) -> None:
    assert ranks.run(4, use_windows) == [
        [0.0, 0.0, 0.0, 4.0],
        [1.0, 2.0, 0.0, 0.0],
        [0.0, 2.0, 0.0, 0.0],
        [1.0, 0.0, 3.0, 0.0],
    ]


def scatter_quantized() -> float:
    dist.init_process_group("gloo", use_torchcomms=True)
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    data = torch.randn(world, 1000, generator=generator)
    exact = torch.zeros(1000)
    dist.reduce_scatter_tensor(exact, data)
    got, later, repeated = torch.zeros(1000), torch.zeros(1000), torch.zeros(1000)
    assert dist.reduce_scatter_quantized(got, data, seed=5) is None
    _done(dist.reduce_scatter_quantized(later, data, async_op=True, seed=5))
    dist.reduce_scatter_quantized(repeated, data, dist.ReduceOp.AVG, seed=torch.tensor([5]))
    assert got.equal(later) and torch.allclose(got / world, repeated)
    # A bfloat16 has 8 significant bits.
    assert (got - exact).abs().max() < 2 * world * data.abs().max() * 2**-7 and not got.equal(exact)
    assert (got - exact).mean().abs() < 0.005
    small = torch.zeros(4)
    dist.reduce_scatter_quantized(small, torch.ones(4 * world))
    assert small.tolist() == [world] * 4
    for wrong, words in (
        (lambda: dist.reduce_scatter_quantized(small, torch.ones(4)), "elements"),
        (lambda: dist.reduce_scatter_quantized(small.double(), torch.ones(4 * world)), "float32"),
        (lambda: dist.reduce_scatter_quantized(small, torch.ones(4 * world), dist.ReduceOp.MAX), "MAX"),
        (lambda: dist.reduce_scatter_quantized(small, torch.ones(4, world).t()), "contiguous"),
    ):
        with pytest.raises(RuntimeError, match=words):
            wrong()
    dist.barrier()
    dist.destroy_process_group()
    return float(world)


@pytest.mark.parametrize("world", [2, 4])
def test_sums_of_rounded_values_are_near_the_exact_ones(ranks: Ranks, world: int) -> None:
    assert ranks.run(world, scatter_quantized) == [float(world)] * world


def test_rounding_is_right_on_average_and_keeps_what_needs_none() -> None:
    exact = torch.tensor([0.0, 1.0, -2.5, float("inf"), -float("inf"), 2.0**-130])
    assert (
        round_at_random(exact).float().equal(exact)
        and round_at_random(torch.tensor([float("nan")])).isnan().all()
    )
    between = torch.full((20_000,), 1.0 + 2.0**-9)
    rounded = round_at_random(between, 1)
    assert set(rounded.float().unique().tolist()) == {1.0, 1.0 + 2.0**-7}
    assert abs(rounded.float().mean().item() - between[0].item()) < 2.0**-7 * 0.02
    assert round_at_random(-between, 1).equal(-rounded)


def ask_without_torchcomms(use_torchcomms: bool) -> list[str]:
    dist.init_process_group("gloo", use_torchcomms=use_torchcomms)
    tensor, pool = torch.ones(2), torch.ones(1)
    said = []
    for call in (
        dist.new_window,
        lambda: dist.reduce_scatter_quantized(tensor, torch.ones(4)),
        dist.get_mem_allocator,
        lambda: dist.register_mem_pool(None, None, pool),
        lambda: dist.deregister_mem_pool(None, "cuda", pool),
        dist.get_comm,
    ):
        try:
            call()
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    dist.barrier()
    dist.destroy_process_group()
    return said


def test_extensions_need_torchcomms_and_say_so(ranks: Ranks) -> None:
    for said in ranks.run(2, ask_without_torchcomms, False):
        assert all("use_torchcomms=True" in words for words in said)
        assert [words.split()[0] for words in said[:3]] == [
            "new_window",
            "reduce_scatter_quantized",
            "get_mem_allocator",
        ]
    for said in ranks.run(2, ask_without_torchcomms, True):
        # Pools need a GPU.
        assert said[:3] == ["", "", ""] and said[5] == ""
        assert torch.cuda.is_available() or all("'cuda'" in words for words in said[3:5])
