"""Every rank puts its part of an array into the memory of all others, from a kernel.

    mpirun -n 4 python examples/python/mscclpp/put_all.py

Needs a GPU, cupy, mpi4py and mpirun; ranks may share a GPU. The kernel in put_all.cu pushes its requests into a queue; a host
thread, the proxy, executes them; the kernel waits until the parts of the other ranks have arrived.
"""

import argparse
import os

import cupy
import mscclpp
from mpi4py import MPI


def device_handles(channels: dict[int, mscclpp.PortChannel], ranks: int) -> cupy.ndarray:
    """The channels for the kernel: an array indexed by rank, with zeros for this rank."""
    handles = {rank: channel.device_handle().raw for rank, channel in channels.items()}
    size = len(next(iter(handles.values())))
    whole = b"".join(handles.get(rank, bytes(size)) for rank in range(ranks))
    return cupy.asarray(memoryview(whole), dtype=cupy.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description="Every rank puts its part of an array into all others'.")
    parser.add_argument("--elements", type=int, default=1 << 20, help="elements of the array (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds (%(default)s)")
    options = parser.parse_args()

    # Any number of ranks may share a GPU.
    cupy.cuda.Device(MPI.COMM_WORLD.rank % cupy.cuda.runtime.getDeviceCount()).use()
    group = mscclpp.CommGroup(MPI.COMM_WORLD)
    rank, ranks = group.my_rank, group.nranks
    if ranks < 2:
        raise SystemExit("put_all needs at least two ranks: mpirun -n 2 or more")
    part = options.elements // ranks
    connections = group.make_connection([r for r in range(ranks) if r != rank], mscclpp.Transport.CudaIpc)
    memory = mscclpp.GpuBuffer(part * ranks, dtype=cupy.int32)

    service = mscclpp.ProxyService()
    channels = group.make_port_channels(service, memory, connections)
    folder = os.path.dirname(os.path.abspath(__file__))
    # Load the kernel before a kernel that waits is launched: loading may block until running kernels end.
    kernel = mscclpp.KernelBuilder("put_all.cu", "put_all", file_dir=folder).get_compiled_kernel()
    handles = device_handles(channels, ranks)
    service.start_proxy()

    for turn in range(options.rounds):
        memory[rank * part : (rank + 1) * part] = turn * ranks + rank
        cupy.cuda.runtime.deviceSynchronize()
        # No rank puts before all ranks have set their parts and checked the last round's.
        group.barrier()
        kernel.launch_kernel(mscclpp.pack(handles, rank, ranks, part * ranks), 1, 512, 0, None)
        cupy.cuda.runtime.deviceSynchronize()
        group.communicator.check()
        for other in range(ranks):
            got = memory[other * part : (other + 1) * part]
            assert bool((got == turn * ranks + other).all()), f"round {turn}: rank {other}'s part is wrong"
        group.barrier()

    service.stop_proxy()
    print(
        f"rank {rank} of {ranks}: {options.rounds} rounds of {part * 4} bytes to each, all right", flush=True
    )


if __name__ == "__main__":
    main()
