"""What the examples of torchcomms share: how they become several ranks. Import this, then call :func:`arguments`."""

import argparse
import os
import socket
import subprocess
import sys
import tempfile

# Where ranks that were started by hand can leave files for each other.
FOLDER = "TORCHCOMMS_EXAMPLE_FOLDER"


def arguments(parser: argparse.ArgumentParser, device: str = "cpu") -> argparse.Namespace:
    """What the user says. Under torchrun, mpirun or srun this process is a rank, and goes on. Started by hand, it starts
    the ranks itself, on this machine, and ends when they have ended."""
    parser.add_argument("--device", default=device, help="where the tensors are (%(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="processes, if started by hand (%(default)s)")
    options = parser.parse_args()
    if any(name in os.environ for name in ("RANK", "TORCHCOMM_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")):
        return options
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(options.ranks):
            who = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(options.ranks),
                FOLDER: folder,
            }
            ranks.append(subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **place, **who}))
        try:
            # One that was killed has a code below zero, and does not count.
            sys.exit(max(rank.wait() for rank in ranks))
        except KeyboardInterrupt:
            for rank in ranks:
                rank.wait()
            sys.exit(130)
