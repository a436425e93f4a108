"""Many tensors reduced at once, each with its own tag, launched in a different order on each peer; peers may die.

Start a master (`pccl_master`), then this program twice or more, and kill one if you like:

    python examples/python/concurrent_reduces.py

Even rounds retry by hand, odd rounds use all_reduce_multiple_with_retry. Each result is checked.
"""

import argparse
import random
import sys
import time

import numpy as np
import numpy.typing as npt
import pccl
import ringfold

Vector = npt.NDArray[np.float32]


def main() -> int:
    parser = argparse.ArgumentParser(description="Many all-reduces at once; start two peers or more.")
    parser.add_argument(
        "--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=20, help="number of rounds of the run (%(default)s)")
    parser.add_argument("--tensors", type=int, default=12, help="tensors per round (%(default)s)")
    parser.add_argument("--elements", type=int, default=50_000, help="elements per tensor (%(default)s)")
    parser.add_argument("--pace", type=float, default=0.0, help="minimum seconds per round (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for another peer (%(default)s)"
    )
    options = parser.parse_args()

    # The state gives new peers the current round, and shows that all peers had the same results.
    digest = np.zeros(options.tensors, dtype=np.float64)
    with ringfold.Run(
        options.master, state={"digest": digest}, wait_timeout=options.timeout, connect_attempts=15
    ) as run:
        for number in run.steps(until=options.rounds):
            began = time.monotonic()
            tensors = [np.full(options.elements, tag + 1, dtype=np.float32) for tag in range(options.tensors)]
            order = random.sample(range(options.tensors), options.tensors)
            by_hand = number % 2 == 0
            (reduce_by_hand if by_hand else reduce_with_retry)(run.communicator, tensors, order)
            for tag, tensor in enumerate(tensors):
                # The number of peers in this result. If a peer died, it may differ between the tensors of a round.
                peers = tensor[0] / (tag + 1)
                if peers < 1 or peers != int(peers) or not (tensor == tensor[0]).all():
                    print(f"tensor {tag} is wrong: {tensor}", file=sys.stderr)
                    return 1
                digest[tag] = digest[tag] * 0.5 + tensor[0]
            how = "by hand" if by_hand else "with retry"
            done = f"round {number + 1}/{options.rounds}"
            print(f"{done}: {len(order)} tensors {how}, {run.world_size} peers")
            time.sleep(max(0.0, began + options.pace - time.monotonic()))
    if run.was_stopped:
        print(f"stopped in round {run.revision}")
        return 0
    print(f"done, digest {digest.sum():.9f}")
    return 0


def reduce_by_hand(comm: pccl.Communicator, tensors: list[Vector], order: list[int]) -> None:
    """Launches all tensors at once, in place, and repeats those that failed. Returns at once if no other peer is left."""
    todo = set(order)
    while todo and comm.world_size >= 2:
        handles = []
        try:
            for tag in order:
                if tag in todo:
                    tensor = tensors[tag]
                    handles.append(
                        (tag, comm.all_reduce_async(tensor, tensor, op=pccl.ReduceOp.SUM, tag=tag))
                    )
        except pccl.PCCLError as error:
            if not error.is_retryable:
                raise
        # Wait for all launched operations before any of them is repeated.
        for tag, handle in handles:
            is_success, _, _ = handle.wait()
            if is_success:
                todo.remove(tag)
            elif handle.error is not None and not handle.error.is_retryable:
                raise handle.error
        if todo:
            print(f"{len(todo)} of {len(order)} reduces failed; retrying")


def reduce_with_retry(comm: pccl.Communicator, tensors: list[Vector], order: list[int]) -> None:
    """The same, done by the library: at most four operations are in flight at a time."""
    descriptors = [
        pccl.ReduceOpDescriptor.from_numpy(
            tensors[tag],
            tensors[tag],
            pccl.ReduceDescriptor(
                count=tensors[tag].size,
                op=pccl.ReduceOp.SUM,
                tag=tag,
                operand_descriptor=pccl.ReduceOperandDescriptor(datatype=pccl.DataType.FLOAT),
                quantization_options=pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.NONE),
            ),
        )
        for tag in order
    ]
    try:
        comm.all_reduce_multiple_with_retry(descriptors, max_in_flight=4)
    except pccl.PCCLError as error:
        if error.result != pccl.Result.TOO_FEW_PEERS:
            raise


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except TimeoutError as error:
        print(f"concurrent_reduces: {error}", file=sys.stderr)
        sys.exit(3)
    except pccl.PCCLError as error:
        sys.exit(f"concurrent_reduces: {error}")
