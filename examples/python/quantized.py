"""Gradients sent as one byte per value: all-reduce with uint8 MinMax quantization, step after step.

Start a master (`pccl_master`), then this program twice or more:

    python examples/python/quantized.py --steps 1000

Quantization loses precision, but all peers still get the same bits. This program proves it by adding up all
results in the shared state, whose hashes are compared at each step.
"""

import argparse
import hashlib
import sys

import numpy as np
import pccl
import ringfold

UINT8 = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX)


def main() -> int:
    parser = argparse.ArgumentParser(description="Quantized all-reduces; start two peers or more.")
    parser.add_argument(
        "--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument("--steps", type=int, default=200, help="number of steps of the run (%(default)s)")
    parser.add_argument(
        "--elements", type=int, default=100_000, help="elements of the gradient (%(default)s)"
    )
    parser.add_argument("--report", type=int, default=50, help="steps between progress lines (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for another peer (%(default)s)"
    )
    options = parser.parse_args()

    random = np.random.default_rng()
    total = np.zeros(options.elements, dtype=np.float32)
    coarse, exact = np.empty_like(total), np.empty_like(total)
    with ringfold.Run(
        options.master, state={"total": total}, wait_timeout=options.timeout, connect_attempts=15
    ) as run:
        is_first = True
        for step in run.steps(until=options.steps):
            if run.synced is not None and run.synced.rx_bytes and not is_first:
                print("the results of this peer differ from the others'", file=sys.stderr)
                return 1
            is_first = False

            gradient = random.normal(size=options.elements).astype(np.float32)
            small = run.reduce(gradient, op=pccl.ReduceOp.AVG, into=coarse, quantization=UINT8)
            total += coarse

            # All peers are at the same step, so all of them measure at the same steps.
            if (step + 1) % options.report == 0 or step + 1 == options.steps:
                large = run.reduce(gradient, op=pccl.ReduceOp.AVG, into=exact)
                sent = f"sent {small.tx_bytes} bytes instead of {large.tx_bytes}"
                error = np.abs(exact - coarse).max()
                done = f"step {step + 1}/{options.steps}: {run.world_size} peers"
                print(f"{done}, {sent}, largest error {error:.4f}")
    if run.was_stopped:
        print(f"stopped at step {run.revision}")
        return 0
    print(f"done, total {hashlib.sha256(total.tobytes()).hexdigest()[:16]}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except TimeoutError as error:
        print(f"quantized: {error}", file=sys.stderr)
        sys.exit(3)
    except pccl.PCCLError as error:
        sys.exit(f"quantized: {error}")
