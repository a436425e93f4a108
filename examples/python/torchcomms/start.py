"""Starts the ranks of the torchcomms examples. Import this, then call :func:`arguments`."""

import argparse
import os
import socket
import subprocess
import sys
import tempfile

# A folder for files that ranks started by hand exchange.
FOLDER = "TORCHCOMMS_EXAMPLE_FOLDER"


def arguments(parser: argparse.ArgumentParser, device: str = "cpu") -> argparse.Namespace:
    """Parses the arguments. Under torchrun, mpirun or srun this process is a rank, and the call returns. Started by hand,
    it starts the ranks itself, on this machine, and exits when they have ended."""
    parser.add_argument("--device", default=device, help="the device of the tensors (%(default)s)")
    parser.add_argument(
        "--ranks", type=int, default=2, help="number of processes, if started by hand (%(default)s)"
    )
    options = parser.parse_args()
    if any(name in os.environ for name in ("RANK", "TORCHCOMM_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")):
        return options
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = os.environ.get("MASTER_PORT", str(free.getsockname()[1]))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
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
            # A killed rank has a negative exit code, which is ignored.
            sys.exit(max(rank.wait() for rank in ranks))
        except KeyboardInterrupt:
            for rank in ranks:
                rank.wait()
            sys.exit(130)
