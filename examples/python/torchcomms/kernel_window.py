"""One-sided puts by a CUDA kernel: it writes into the next rank's memory, signals it, and waits. Needs a CUDA device.

torchrun --nproc-per-node 2 examples/python/torchcomms/kernel_window.py
"""

import argparse
import ctypes
import os
import sys

import mscclpp
import start
import torch
import torchcomms


def main() -> None:
    parser = argparse.ArgumentParser(description="One-sided puts by a CUDA kernel; needs a CUDA device.")
    options = start.arguments(parser, device="cuda:0")
    if not torch.cuda.is_available():
        sys.exit("kernel_window: there is no CUDA device here")
    device = torch.device(options.device)
    torch.cuda.set_device(device)
    comm = torchcomms.new_comm("nccl", device, name="kernel_window")
    rank, world = comm.get_rank(), comm.get_size()

    table = torch.zeros(world, 4, device=device)
    window = comm.new_window(table)
    handle = window.get_device_window()

    folder = os.path.dirname(os.path.abspath(__file__))
    kernel = mscclpp.KernelBuilder("kernel_window.cu", "pass_on", folder).get_compiled_kernel()
    row = torch.full((4,), float(rank), device=device)
    parameters = mscclpp.pack(handle.raw, row, ctypes.c_size_t(row.nbytes))
    kernel.launch_kernel(parameters, nblocks=1, nthreads=128, stream=torch.cuda.current_stream())
    print(f"rank {rank}: {table.tolist()}")

    # Raises if a wait in the kernel has failed.
    comm.barrier(async_op=False)
    window.tensor_deregister()
    comm.finalize()


if __name__ == "__main__":
    main()
