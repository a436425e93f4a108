"""One-sided puts: each rank writes into the next rank's memory and signals it. No rank calls receive.

python examples/python/torchcomms/window.py --ranks 3
torchrun --nproc-per-node 2 examples/python/torchcomms/window.py
"""

import argparse

import start
import torch
import torchcomms


def main() -> None:
    options = start.arguments(
        argparse.ArgumentParser(description="One-sided puts into the next rank's memory.")
    )
    device = torch.device(options.device)
    comm = torchcomms.new_comm("ringfold", device, name="window")
    rank, world = comm.get_rank(), comm.get_size()
    right, left = (rank + 1) % world, (rank - 1) % world

    # One row for each rank. Registering is collective.
    table = torch.zeros(world, 4, device=device)
    window = comm.new_window()
    window.tensor_register(table)

    row = torch.full((4,), float(rank), device=device)
    window.put(row, right, target_offset_nelems=rank * 4, async_op=False)
    window.signal(right, async_op=False)
    window.wait_signal(left, async_op=False)
    print(f"rank {rank}: {table.tolist()} ({window.get_attr(left).access_type.name})")

    # No rank deregisters memory while others still write to it.
    comm.barrier(async_op=False)
    window.tensor_deregister()
    comm.finalize()


if __name__ == "__main__":
    main()
