"""A ring of puts without a GPU: each rank puts an array into its neighbour's memory, round after round.

    python examples/python/mscclpp/ring.py --ranks 4
    python examples/python/mscclpp/ring.py --transport Ethernet

In this form it starts its ranks itself. On several machines, start each rank by hand:

    python examples/python/mscclpp/ring.py --ranks 2 --rank 0 --at 10.0.0.1:50000 --transport Ethernet

Needs numpy.
"""

import argparse
import socket
import subprocess
import sys

import mscclpp
import numpy


def ring(options: argparse.Namespace) -> None:
    """This process is a rank."""
    group = mscclpp.CommGroup(interfaceIpPortTrio=options.at, rank=options.rank, size=options.ranks)
    rank, ranks = group.my_rank, group.nranks
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    connections = group.make_connection(sorted({left, right}), mscclpp.Transport[options.transport])

    # Two halves: the data from the left neighbour, and the data for the right neighbour.
    memory = mscclpp.HostBuffer((2, options.elements), dtype=numpy.int64)
    service = mscclpp.ProxyService()
    channels = group.make_port_channels(service, memory, connections)
    service.start_proxy()

    memory[1] = rank
    half = memory[0].nbytes
    for _ in range(ranks):
        # From this rank's second half into the neighbour's first.
        channels[right].put_with_signal_and_flush(0, half, half)
        channels[left].wait(timeout=60)
        memory[1] = memory[0]
        # The data has been read and may be overwritten: signal the left neighbour, and wait for the right neighbour.
        channels[left].signal()
        channels[right].wait(timeout=60)
    service.stop_proxy()
    # The data of each rank has passed through the whole ring.
    assert (memory[1] == rank).all()
    print(
        f"rank {rank} of {ranks}: {ranks} rounds of {half} bytes by {options.transport}, all right",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Each rank puts an array into its neighbour's memory.")
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks (%(default)s)")
    parser.add_argument(
        "--rank", type=int, help="the rank of this process; without it all ranks are started here"
    )
    parser.add_argument(
        "--at", default="", metavar="[INTERFACE:]HOST:PORT", help="the address on which rank 0 listens"
    )
    parser.add_argument("--transport", default="SharedMemory", choices=["SharedMemory", "Ethernet"])
    parser.add_argument("--elements", type=int, default=1 << 17, help="elements of the array (%(default)s)")
    options = parser.parse_args()
    if options.ranks < 3:
        parser.error("a ring has 3 ranks or more")
    if options.rank is not None:
        ring(options)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = options.at or f"127.0.0.1:{free.getsockname()[1]}"
    words = [sys.executable, *sys.argv, "--ranks", str(options.ranks), "--at", at]
    started = [subprocess.Popen([*words, "--rank", str(rank)]) for rank in range(options.ranks)]
    try:
        sys.exit(max(abs(process.wait()) for process in started))
    except KeyboardInterrupt:
        for process in started:
            process.wait()
        sys.exit(130)


if __name__ == "__main__":
    main()
