"""The loop of an elastic run with PyTorch: parameters as shared state, gradients reduced asynchronously.

Start a master (`pccl_master`), then this program twice or more:

    python examples/python/hello_world_torch.py
"""

import argparse
import sys
import time

import pccl
import torch


def main() -> int:
    parser = argparse.ArgumentParser(description="An elastic run with PyTorch; start two peers or more.")
    parser.add_argument(
        "--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument("--steps", type=int, default=20, help="the run ends at this revision (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for another peer (%(default)s)"
    )
    parser.add_argument(
        "--device", default="cuda" if pccl.cuda.is_available() else "cpu", help="default: %(default)s"
    )
    options = parser.parse_args()

    # The line to find: y = 3 x + 1. Each peer starts with its own parameters and sees its own points.
    model = torch.nn.Linear(1, 1).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    # Parameters in a shared state are written in place.
    state = pccl.SharedState([pccl.TensorInfo.from_torch(p, name) for name, p in model.named_parameters()])
    with pccl.Communicator(options.master) as comm:
        comm.connect(n_attempts=15)
        print(f"connected to {options.master} as {comm.name}")
        is_newcomer = True
        while state.revision < options.steps:
            if not wait_for_peer(comm, is_newcomer, options.timeout):
                print(f"no other peer joined within {options.timeout:g} s", file=sys.stderr)
                return 3
            comm.sync_shared_state(state)
            is_newcomer = False

            x = torch.rand(32, 1, device=options.device) * 2 - 1
            loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
            optimizer.zero_grad()
            loss.backward()
            if not average(comm, [p.grad for p in model.parameters() if p.grad is not None]):
                continue  # No other peer is left. Wait for new peers, then repeat this step.
            optimizer.step()
            state.revision += 1
            print(f"revision {state.revision}: {comm.world_size} peers, loss {loss.item():.6f}")
    slope, offset = model.weight.item(), model.bias.item()
    print(f"reached revision {state.revision}: y = {slope!r} x + {offset!r}")
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


def average(comm: pccl.Communicator, gradients: list[torch.Tensor]) -> bool:
    """Averages all gradients at once, each with its own tag, and repeats those that failed. False without other peers."""
    todo = dict(enumerate(gradients))
    while todo and comm.world_size >= 2:
        handles = {}
        try:
            for tag, gradient in todo.items():
                handles[tag] = comm.all_reduce_async(gradient, gradient, op=pccl.ReduceOp.AVG, tag=tag)
        except pccl.PCCLError as error:
            if not error.is_retryable:
                raise
        for tag, handle in handles.items():
            is_success, _, _ = handle.wait()
            if is_success:
                del todo[tag]
            elif handle.error is not None and not handle.error.is_retryable:
                raise handle.error
    return not todo


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except pccl.PCCLError as error:
        sys.exit(f"hello_world_torch: {error}")
