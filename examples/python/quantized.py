"""Gradients that travel as one byte a value: all-reduce with uint8 MinMax quantisation, step after step.

Start a master (`pccl_master`), then this program twice or more:

    python examples/python/quantized.py --steps 1000

Quantisation loses precision, never agreement: all peers get the same bits. This program proves it by adding
up all results in the shared state, whose hashes are compared at each step.
"""

import argparse
import hashlib
import sys
import time

import numpy as np
import numpy.typing as npt
import pccl

Vector = npt.NDArray[np.float32]
UINT8 = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX)


def main() -> int:
    parser = argparse.ArgumentParser(description="Quantised all-reduces; start two peers or more.")
    parser.add_argument(
        "--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument(
        "--steps", type=int, default=200, help="the run ends after so many steps (%(default)s)"
    )
    parser.add_argument("--elements", type=int, default=100_000, help="of the gradient (%(default)s)")
    parser.add_argument("--report", type=int, default=50, help="steps between progress lines (%(default)s)")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds to wait for company (%(default)s)"
    )
    options = parser.parse_args()

    random = np.random.default_rng()
    total = np.zeros(options.elements, dtype=np.float32)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(total, "total")])
    with pccl.Communicator(options.master) as comm:
        comm.connect(n_attempts=15)
        print(f"connected to {options.master} as {comm.name}")
        is_newcomer = True
        while state.revision < options.steps:
            if not gather(comm, is_newcomer, options.patience):
                print(f"nobody else came within {options.patience:g} s", file=sys.stderr)
                return 3
            if comm.sync_shared_state(state).rx_bytes and not is_newcomer:
                print("our results differ from the others'", file=sys.stderr)
                return 1
            is_newcomer = False

            gradient = random.normal(size=options.elements).astype(np.float32)
            coarse = np.empty_like(gradient)
            small = average(comm, gradient, coarse, tag=0, quantization=UINT8)
            if small is None:
                continue  # All others are gone. Wait for new ones, then do this step again.
            total += coarse
            state.revision += 1

            if state.revision % options.report == 0 or state.revision == options.steps:
                exact = np.empty_like(gradient)
                large = average(comm, gradient, exact, tag=1, quantization=None)
                if large is not None:
                    error = np.abs(exact - coarse).max()
                    done = f"step {state.revision}/{options.steps}: {small.world_size} peers"
                    sent = f"sent {small.tx_bytes} bytes instead of {large.tx_bytes}"
                    print(f"{done}, {sent}, largest error {error:.4f}")
    print(f"done, total {hashlib.sha256(total.tobytes()).hexdigest()[:16]}")
    return 0


def average(
    comm: pccl.Communicator,
    mine: Vector,
    result: Vector,
    *,
    tag: int,
    quantization: pccl.QuantizationOptions | None,
) -> pccl.ReduceInfo | None:
    """Averages over all peers, once more whenever one of them is lost; None if all of them are."""
    while comm.world_size >= 2:
        try:
            return comm.all_reduce(
                mine, result, op=pccl.ReduceOp.AVG, tag=tag, quantization_options=quantization
            )
        except pccl.PCCLError as error:
            if not error.is_retryable:
                raise
            print(f"{error}; once more")
    return None


def gather(comm: pccl.Communicator, is_newcomer: bool, patience: float) -> bool:
    """Lets in whoever waits to join, until there are two peers; False if there are not in time."""
    deadline = time.monotonic() + patience
    # A newcomer was let in by the others' update_topology, and goes on with them.
    while not is_newcomer or comm.world_size < 2:
        is_newcomer = False
        try:
            comm.update_topology()
        except pccl.PCCLError as error:
            if not error.is_retryable:
                raise
            print(f"{error}; once more")
            continue
        if comm.world_size >= 2:
            break
        if time.monotonic() > deadline:
            return False
        print("alone, waiting for another peer")
        time.sleep(0.5)
    return True


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except pccl.PCCLError as error:
        sys.exit(f"quantized: {error}")
