"""A communicator with a timeout, hints, and errors that are raised; and one call with its own timeout.

python examples/python/torchcomms/custom_options.py
torchrun --nproc-per-node 2 examples/python/torchcomms/custom_options.py --backend ncclx --device cuda:0
"""

import argparse
from datetime import timedelta

import start
import torch
import torchcomms


def main() -> None:
    parser = argparse.ArgumentParser(description="A timeout, hints, and errors that are raised.")
    parser.add_argument("--backend", default="ringfold", help="default: %(default)s")
    options = start.arguments(parser)
    device = torch.device(options.device)
    comm = torchcomms.new_comm(
        options.backend,
        device,
        name="custom",
        timeout=timedelta(seconds=60),
        abort_process_on_timeout_or_error=False,
        hints={"torchcomm::ncclx::high_priority_stream": "true"},
    )
    rank = comm.get_rank()
    tensor = torch.tensor([float(rank)], device=device)
    comm.all_reduce(tensor, torchcomms.ReduceOp.MAX, async_op=False, timeout=5.0)
    print(f"rank {rank}: the last rank is {tensor.item():g}")

    # The other ranks never make this call, so it fails, and the error names the ranks it waited for.
    if rank == 0 and comm.get_size() > 1:
        try:
            comm.barrier(async_op=False, timeout=0.5)
        except RuntimeError as error:
            print(f"rank 0: {error}")
    comm.finalize()


if __name__ == "__main__":
    main()
