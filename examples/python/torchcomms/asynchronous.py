"""Asynchronous work: a transfer and a sum are in flight while the rank computes.

python examples/python/torchcomms/asynchronous.py
torchrun --nproc-per-node 2 examples/python/torchcomms/asynchronous.py
"""

import argparse

import start
import torch
import torchcomms


def main() -> None:
    options = start.arguments(
        argparse.ArgumentParser(description="A transfer and a sum overlapped with a computation.")
    )
    device = torch.device(options.device)
    comm = torchcomms.new_comm("ringfold", device, name="asynchronous")
    rank, world = comm.get_rank(), comm.get_size()

    # Every rank sends to the next rank and receives from the previous one.
    sent = torch.full((1_000_000,), float(rank), device=device)
    received = torch.empty_like(sent)
    total = torch.full((1_000_000,), 1.0, device=device)
    works = [comm.all_reduce(total, torchcomms.ReduceOp.SUM, async_op=True)]
    if world > 1:
        works.append(comm.send(sent, dst=(rank + 1) % world, async_op=True))
        works.append(comm.recv(received, src=(rank - 1) % world, async_op=True))

    # All three are in flight. Do not write to their tensors meanwhile.
    matrix = torch.randn(500, 500, device=device)
    norm = (matrix @ matrix.T).norm().item()

    for work in works:
        work.wait()
    assert norm > 0
    print(f"rank {rank} has received {received[0].item():g}, and the sum is {total[0].item():g}")
    comm.finalize()


if __name__ == "__main__":
    main()
