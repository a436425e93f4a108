"""An all-reduce within a CUDA graph, captured once and replayed ten times. Needs a CUDA device.

torchrun --nproc-per-node 2 examples/python/torchcomms/cuda_graph.py
"""

import argparse
import sys

import start
import torch
import torchcomms


def main() -> None:
    parser = argparse.ArgumentParser(description="An all-reduce within a CUDA graph; needs a CUDA device.")
    options = start.arguments(parser, device="cuda:0")
    if not torch.cuda.is_available():
        sys.exit("cuda_graph: there is no CUDA device here")
    device = torch.device(options.device)
    comm = torchcomms.new_comm("ncclx", device, name="graph")
    rank, world = comm.get_rank(), comm.get_size()

    tensor = torch.ones(10, device=device) * (rank + 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Do not wait for the work while the graph is captured.
        comm.all_reduce(tensor, torchcomms.ReduceOp.AVG, async_op=True)
    for _ in range(10):
        graph.replay()
        torch.cuda.current_stream().synchronize()

    print(f"rank {rank} of {world}: {tensor.tolist()}")
    comm.finalize()


if __name__ == "__main__":
    main()
