"""A step of several operations within a CUDA graph, captured once and replayed ten times. Needs a CUDA device.

torchrun --nproc-per-node 2 examples/python/torchcomms/cuda_graph.py
"""

import argparse
import sys

import start
import torch
import torchcomms


def main() -> None:
    parser = argparse.ArgumentParser(description="Operations within a CUDA graph; needs a CUDA device.")
    options = start.arguments(parser, device="cuda:0")
    if not torch.cuda.is_available():
        sys.exit("cuda_graph: there is no CUDA device here")
    device = torch.device(options.device)
    comm = torchcomms.new_comm("ncclx", device, name="graph")
    rank, world = comm.get_rank(), comm.get_size()

    step = torch.zeros(1, device=device)
    gradient, parameters = torch.zeros(10 * world, device=device), torch.zeros(10 * world, device=device)
    shard, neighbour = torch.zeros(10, device=device), torch.zeros(10, device=device)

    def act() -> None:
        step.add_(1.0)
        gradient.copy_(step.expand_as(gradient)).mul_(rank + 1)
        comm.reduce_scatter_single(shard, gradient, torchcomms.ReduceOp.AVG, async_op=True).wait()
        comm.all_gather_single(parameters, shard, async_op=False)
        if world > 1:
            batch = comm.batch_op_create()
            batch.send(shard, (rank + 1) % world)
            batch.recv(neighbour, (rank - 1) % world)
            batch.issue(False)
        comm.barrier(async_op=False)

    # Once before the capture: kernels are compiled when they are first used.
    act()
    step.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        act()
    for _ in range(10):
        graph.replay()
    torch.cuda.current_stream().synchronize()

    print(f"rank {rank} of {world}: {parameters[:10].tolist()}, from its neighbour {neighbour[:3].tolist()}")
    comm.finalize()


if __name__ == "__main__":
    main()
