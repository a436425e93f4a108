"""The smallest program: all ranks add up their tensors.

    python examples/python/torchcomms/basic.py --ranks 3
    torchrun --nproc-per-node 2 examples/python/torchcomms/basic.py

With ``--store FILE`` the rendezvous uses a file that all ranks can access. Only RANK and WORLD_SIZE are needed then.
"""

import argparse
import os

import start
import torch
import torchcomms


def main() -> None:
    parser = argparse.ArgumentParser(description="All ranks add up their tensors.")
    parser.add_argument(
        "--store", metavar="FILE", help="use this file for the rendezvous instead of MASTER_ADDR"
    )
    options = start.arguments(parser)

    device = torch.device(options.device)
    store = None
    if options.store is not None:
        store = torch.distributed.FileStore(options.store, int(os.environ["WORLD_SIZE"]))
    comm = torchcomms.new_comm("ringfold", device, name="basic", store=store)
    rank = comm.get_rank()

    tensor = torch.ones(10, device=device) * rank
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, async_op=False)
    print(f"rank {rank} of {comm.get_size()}: {tensor.tolist()}")

    comm.finalize()


if __name__ == "__main__":
    main()
