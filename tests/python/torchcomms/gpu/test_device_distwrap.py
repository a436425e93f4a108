"""distwrap on devices: communicators for the host and for CUDA tensors in one group."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as plain
from ranks import Ranks
from test_device_collectives import DEADLINE, TIMEOUT, limit
from torchcomms import distwrap as dist
from versions import mixes_devices

KIND = "cuda"


def begin(backend: str) -> torch.device:
    limit()
    device = torch.device(KIND, 0)
    torch.cuda.set_device(device)
    dist.init_process_group(backend, use_torchcomms=True, timeout=timedelta(seconds=TIMEOUT))
    return device


def use_both_kinds(backend: str) -> None:
    device = begin(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    host, cuda = dist.get_comm(device="cpu"), dist.get_comm(device=device)
    assert host is not cuda and cuda.get_device() == device and dist.get_comm() is cuda
    total = size * (size + 1) / 2
    for where in (device, torch.device("cpu")):
        tensor = torch.full((1000,), rank + 1.0, device=where)
        dist.all_reduce(tensor)
        assert float(tensor[-1]) == total
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        work.wait()
        assert float(tensor[-1]) == total
        with pytest.raises(RuntimeError, match="distwrap"):
            plain.all_reduce(tensor)
    inbox = torch.zeros(1000, device=device)
    after, before = (rank + 1) % size, (rank - 1) % size
    mine = torch.full((1000,), float(rank), device=device)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, inbox, before)]
    ):
        work.wait()
    assert float(inbox[-1]) == before
    group = dist.new_group(list(range(size)))
    dist.all_reduce(mine, group=group)
    assert float(mine[0]) == total - size
    dist.barrier()
    dist.destroy_process_group()


@mixes_devices
@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:nccl", "ringfold"])
def test_each_tensor_goes_to_the_communicator_of_its_device(ranks: Ranks, backend: str) -> None:
    ranks.run(2, use_both_kinds, backend, deadline=DEADLINE)


def use_extensions() -> None:
    device = begin("cuda:ringfold")
    rank, size = dist.get_rank(), dist.get_world_size()
    data = torch.randn(size * 5000, device=device)
    exact, got = torch.zeros(5000, device=device), torch.zeros(5000, device=device)
    dist.reduce_scatter_tensor(exact, data)
    dist.reduce_scatter_quantized(got, data, seed=3)
    bound = size * float(data.abs().max()) * 2.0**-6
    assert float((got - exact).abs().max()) < bound
    again = torch.zeros(5000, device=device)
    work = dist.reduce_scatter_quantized(again, data, async_op=True, seed=3)
    assert work is not None
    work.wait()
    assert again.equal(got)

    inbox = torch.zeros(4, device=device)
    window = dist.new_window()
    window.tensor_register(inbox)
    source = torch.full((1,), rank + 1.0, device=device)
    buffer = window.register_local_buffer(source)
    assert (buffer.address, buffer.size) == (source.data_ptr(), 4)
    window.put(source, (rank + 1) % size, rank, False)
    window.signal((rank + 1) % size, False)
    window.wait_signal((rank - 1) % size, False)
    before = (rank - 1) % size
    assert float(inbox[before]) == before + 1
    window.deregister_local_buffer(buffer)
    dist.barrier()
    window.tensor_deregister()

    pool = torch.cuda.MemPool(dist.get_mem_allocator())
    with torch.cuda.use_mem_pool(pool):
        large = torch.ones(4 << 20, device=device)
    dist.register_mem_pool(None, None, pool)
    dist.all_reduce(large)
    assert float(large[-1]) == size
    torch.cuda.synchronize()
    dist.barrier()
    dist.deregister_mem_pool(None, None, pool)
    with pytest.raises(TypeError, match="MemPool"):
        dist.register_mem_pool(None, "cuda", large)
    dist.destroy_process_group()


def test_windows_quantized_sums_and_pools(ranks: Ranks) -> None:
    ranks.run(2, use_extensions, deadline=DEADLINE)


def sum_sparse_tensors() -> None:
    device = begin("cuda:ringfold")
    rank, size = dist.get_rank(), dist.get_world_size()
    sparse = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (4,), device=device, check_invariants=False)
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * size + [0.0] * (3 - size) + [2.0 * size]
    dist.destroy_process_group()


def test_sparse_tensors_are_summed(ranks: Ranks) -> None:
    ranks.run(2, sum_sparse_tensors, deadline=DEADLINE)
