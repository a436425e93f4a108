"""Trains in Ray actors: `ringfold.ray` starts a master and the replicas, and Ray starts lost ones again.

Run it on a machine of the cluster, or with `ray job submit`. Everything behind `--` is for train.py, in the folder above:

    python deploy/ray/submit.py --peers 4 -- --steps 1000 --replicas-min 2 --checkpoints /shared/checkpoints
"""

import argparse
import logging
import os
from pathlib import Path

import ray
import ringfold.ray


def replica(peer: ringfold.ray.PeerContext, arguments: list[str]) -> int:
    import train  # Ray copies the folder to all machines.

    # After the name it is what is typed by hand for one replica.
    return train.main(["--master", peer.masters, "--name", peer.name, *arguments])


def main() -> None:
    parser = argparse.ArgumentParser(description="Elastic training in Ray actors.")
    parser.add_argument("--peers", type=int, default=2, help="how many replicas (%(default)s)")
    parser.add_argument("--masters", type=int, default=1, help="how many masters (%(default)s)")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of each replica (%(default)s)")
    parser.add_argument("--name", default="train", help="of the actors, NAME/peer-0 and so on (%(default)s)")
    parser.add_argument("arguments", nargs="*", help="for train.py, behind --")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # A cluster that RAY_ADDRESS names, or that runs on this machine; otherwise a new one of this machine alone.
    ray.init(
        address=os.environ.get("RAY_ADDRESS"),
        runtime_env={"working_dir": str(Path(__file__).resolve().parents[1])},
    )
    codes = ringfold.ray.run(
        replica,
        options.peers,
        masters=options.masters,
        kwargs={"arguments": options.arguments},
        resources={"CPU": 1, "GPU": options.gpus} if options.gpus else {"CPU": 1},
        name=options.name,
    )
    print(f"all replicas have ended: {codes}", flush=True)


if __name__ == "__main__":
    main()
