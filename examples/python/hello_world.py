"""The whole loop of an elastic run, with NumPy: join, admit other peers, sync the state, reduce, retry.

Start a master (`pccl_master`), then this program twice or more. More peers may join while it runs:

    python examples/python/hello_world.py
"""

import argparse
import sys
import time

import numpy as np
import numpy.typing as npt
import pccl

Vector = npt.NDArray[np.float32]


def main() -> int:
    parser = argparse.ArgumentParser(description="An elastic run with NumPy; start two peers or more.")
    parser.add_argument(
        "--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument("--steps", type=int, default=5, help="the run ends at this revision (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for another peer (%(default)s)"
    )
    options = parser.parse_args()

    weights = np.zeros(8, dtype=np.float32)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(weights, "weights")])
    with pccl.Communicator(options.master) as comm:
        comm.connect(n_attempts=15)
        print(f"connected to {options.master} as {comm.name}")
        is_newcomer = True
        while state.revision < options.steps:
            if not wait_for_peer(comm, is_newcomer, options.timeout):
                print(f"no other peer joined within {options.timeout:g} s", file=sys.stderr)
                return 3
            # An outdated peer receives the weights and the revision; all others only compare hashes.
            sync = comm.sync_shared_state(state)
            if sync.rx_bytes and not is_newcomer:
                print("the weights of this peer had drifted from the others'", file=sys.stderr)
                return 1
            is_newcomer = False

            gradient = np.arange(1, 9, dtype=np.float32)
            info = average(comm, gradient)
            if info is None:
                continue  # No other peer is left. Wait for new peers, then repeat this step.
            weights += gradient
            state.revision += 1
            print(f"revision {state.revision}: {info.world_size} peers, weights {weights.tolist()}")
    print(f"reached revision {state.revision}")
    return 0


def wait_for_peer(comm: pccl.Communicator, is_newcomer: bool, timeout: float) -> bool:
    """Admits waiting peers until there are two peers. Returns False if that takes too long."""
    deadline = time.monotonic() + timeout
    # A new peer was admitted by the others' update_topology, and continues with them.
    while not is_newcomer or comm.world_size < 2:
        is_newcomer = False
        try:
            comm.update_topology()
        except pccl.PCCLError as error:
            if not error.is_retryable:
                raise
            print(f"{error}; retrying")
            continue
        if comm.world_size >= 2:
            break
        if time.monotonic() > deadline:
            return False
        print("alone, waiting for another peer")
        time.sleep(0.5)
    return True


def average(comm: pccl.Communicator, gradient: Vector) -> pccl.ReduceInfo | None:
    """Averages over all peers in place; retries when a peer is lost. Returns None if no other peer is left."""
    while comm.world_size >= 2:
        try:
            return comm.all_reduce(gradient, gradient, op=pccl.ReduceOp.AVG)
        except pccl.PCCLError as error:
            # After a failure the gradient is restored, so it can be reduced again.
            if not error.is_retryable:
                raise
            print(f"{error}; retrying")
    return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except pccl.PCCLError as error:
        sys.exit(f"hello_world: {error}")
