"""A rank is killed in the middle, and the others continue without it.

    python examples/python/torchcomms/reconfigure.py --ranks 3

torchrun ends all ranks when one of them dies, so start them by hand or with another launcher.
"""

import argparse
import json
import os
import signal
import time

import start
import torch
import torchcomms

PATIENCE_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description="A rank is killed, and the others continue.")
    parser.add_argument("--steps", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--victim", type=int, default=1, help="the rank that dies; -1 for none (%(default)s)")
    parser.add_argument("--store", metavar="FILE", help="the file for the rendezvous; a new one for each run")
    options = start.arguments(parser)
    path = options.store or f"{os.environ[start.FOLDER]}/store"
    me, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    # The rendezvous must outlive any rank: a file does.
    store = torch.distributed.FileStore(path, -1)
    comm = torchcomms.new_comm(
        "ringfold", torch.device(options.device), name="training", enable_reconfigure=True, timeout=30.0
    )
    store.set(f"handle/{me}", comm.get_init_handle())
    alive = list(range(world))
    comm.reconfigure(0, handles(store, alive)).wait()

    step, round = 0, 0
    while step < options.steps:
        if me == options.victim and step == options.steps // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = torch.full((1000,), float(me + 1), device=options.device)
        try:
            comm.all_reduce(gradient, torchcomms.ReduceOp.AVG, async_op=False)
        except RuntimeError as error:
            # The gradient is restored. Repeat this step with the remaining ranks.
            print(f"rank {me}, step {step}: {error}", flush=True)
            round += 1
            alive = survivors(store, round, me, alive)
            comm.reconfigure(round, handles(store, alive)).wait()
            # Some ranks may have finished the step just before: all continue from the earliest.
            earliest = torch.tensor([step], device=options.device)
            comm.all_reduce(earliest, torchcomms.ReduceOp.MIN, async_op=False)
            step = int(earliest.item())
            continue
        print(f"rank {me}, step {step}: {comm.get_size()} ranks, mean {gradient[0].item():g}", flush=True)
        step += 1
    comm.finalize()


def handles(store: torch.distributed.Store, ranks: list[int]) -> list[str]:
    """The handles of these ranks. Their order is the order of the new ranks."""
    return [store.get(f"handle/{rank}").decode() for rank in ranks]


def survivors(store: torch.distributed.Store, round: int, me: int, before: list[int]) -> list[int]:
    """The ranks that report within a second continue. The first rank to store its list decides for all."""
    store.set(f"{round}/{me}", "here")
    deadline = time.monotonic() + PATIENCE_S
    here = [me]
    while len(here) < len(before) - 1 and time.monotonic() < deadline:
        here = [rank for rank in before if store.check([f"{round}/{rank}"])]
        time.sleep(0.01)
    return list(json.loads(store.compare_set(f"{round}/members", "", json.dumps(here))))


if __name__ == "__main__":
    main()
