"""An all-reduce in forty lines of CUDA: by packets through memory channels, in a captured graph.

    python examples/python/mscclpp/all_reduce.py --ranks 4

It starts its ranks itself; they may share a GPU. Needs a GPU and cupy. The tutorial explains it line by line:
docs/python/mscclpp-tutorial.md.
"""

import argparse
import importlib.util
import os
import socket
import subprocess
import sys

import numpy

FOLDER = os.path.dirname(os.path.abspath(__file__))


def sums(parts: list[int], calls: int) -> numpy.float32:
    """The exact value of each element after this number of calls: the kernel adds in rank order."""
    values = [numpy.float32(part) for part in parts]
    for _ in range(calls):
        total = numpy.float32(0)
        for value in values:
            total += value
        values = [total] * len(parts)
    return values[0]


def run(options: argparse.Namespace) -> None:
    """This process is a rank."""
    import cupy
    import mscclpp

    cupy.cuda.Device(options.rank % cupy.cuda.runtime.getDeviceCount()).use()
    group = mscclpp.CommGroup(interfaceIpPortTrio=options.at, rank=options.rank, size=options.ranks)
    rank, ranks = group.my_rank, group.nranks
    others = [other for other in range(ranks) if other != rank]
    connections = group.make_connection(others, mscclpp.Transport.CudaIpc)

    # Packets take twice the space of their data; each rank has two slots for every rank.
    data = mscclpp.GpuBuffer(options.elements, dtype=cupy.float32)
    scratch = mscclpp.GpuBuffer(2 * ranks * 2 * options.elements, dtype=cupy.float32)
    channels = group.make_memory_channels_with_scratch(data, scratch, connections)
    size = len(channels[others[0]].device_handle().raw)
    raw = [channels[r].device_handle().raw if r != rank else bytes(size) for r in range(ranks)]
    handles = cupy.asarray(memoryview(b"".join(raw)), dtype=cupy.uint8)
    kernel = mscclpp.KernelBuilder("all_reduce.cu", "all_reduce", file_dir=FOLDER).get_compiled_kernel()
    params = mscclpp.pack(handles, rank, ranks, data, options.elements // 2)

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(options.calls):
            kernel.launch_kernel(params, 1, 256, 0, stream)
        graph = stream.end_capture()
        for turn in range(1, 11):
            data[:] = turn + rank
            stream.synchronize()
            group.barrier()
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            graph.launch(stream)
            end.record()
            stream.synchronize()
            # Raises if a wait in the kernel failed, and names the rank.
            group.communicator.check()
            expected = sums([turn + other for other in range(ranks)], options.calls)
            assert bool((data == expected).all()), f"{data[:4]} is not {expected}"
    if rank == 0:
        us = 1000 * cupy.cuda.get_elapsed_time(begin, end) / options.calls
        print(f"{ranks} ranks, {data.nbytes} bytes: {us:.1f} us a call, all right", flush=True)
    group.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description="An all-reduce by packets, in a captured graph.")
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks (%(default)s)")
    parser.add_argument("--elements", type=int, default=256, help="floats, an even number (%(default)s)")
    parser.add_argument("--calls", type=int, default=10, help="calls in the graph (%(default)s)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranks < 2 or options.elements < 2 or options.elements % 2:
        parser.error("it takes 2 ranks or more, and an even number of elements")
    if options.rank is not None:
        run(options)
        return
    if importlib.util.find_spec("cupy") is None:
        sys.exit("this program needs a GPU and cupy (pip install cupy-cuda13x); ring.py needs neither")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    words = [sys.executable, *sys.argv, "--at", at]
    ranks = [subprocess.Popen([*words, "--rank", str(rank)]) for rank in range(options.ranks)]
    try:
        sys.exit(max(abs(rank.wait()) for rank in ranks))
    except KeyboardInterrupt:
        for rank in ranks:
            rank.wait()
        sys.exit(130)


if __name__ == "__main__":
    main()
