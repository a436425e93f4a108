"""A small training run whose replicas come and go, for all recipes of this folder.

Give it the address of the master (`--master`, or the variable RINGFOLD_MASTERS) and a directory for checkpoints. It resumes from the
newest checkpoint, or receives the state of the replicas that train. Replace the data, the model and the loss by yours.

Exit code 0: the run has reached its last step. 143: SIGTERM has ended this replica before that; start it again, and it resumes.
Under systemd it says when it is ready, and which step it makes (`systemctl status`).
"""

import argparse
import hashlib
import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

import ringfold.torch.elastic as elastic
import torch
from torch.utils.data import DataLoader, TensorDataset


def notify(text: str) -> None:
    """Tells systemd about this process, in a unit with Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.sendto(text.encode(), address.replace("@", "\0", 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, and returns the exit code."""
    parser = argparse.ArgumentParser(description="A replica of a small elastic training run.")
    parser.add_argument("--master", metavar="HOST:PORT,...", help="default: RINGFOLD_MASTERS")
    parser.add_argument("--name", help="the name of this replica in logs (default: host and process)")
    parser.add_argument("--checkpoints", metavar="DIR", help="directory of the checkpoints; none by default")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints (%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the run (%(default)s)")
    parser.add_argument(
        "--replicas-min", type=int, default=1, help="wait while there are fewer (%(default)s)"
    )
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between steps (%(default)s)")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(1)  # The data is the same on all replicas.
    labels = torch.randint(10, (5000,), generator=chance)
    points = torch.randn(10, 64, generator=chance)[labels] + 0.8 * torch.randn(5000, 64, generator=chance)
    data = TensorDataset(points, labels)

    # In a pod, the address of the pod is the one that other replicas can dial.
    dialled = {"advertise": os.environ["POD_IP"]} if os.environ.get("POD_IP") else {}
    policy = elastic.Policy(replicas_min=options.replicas_min)
    run = elastic.join(options.master, name=options.name, policy=policy, **dialled)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = elastic.Sampler(data, run)
    run.replicate(model, optimizer, sampler=sampler)
    if options.checkpoints and run.restore(options.checkpoints):
        print(f"resumes at step {run.step}", flush=True)
    notify("READY=1\nSTATUS=joining the run")
    for step, (x, y) in run.batches(DataLoader(data, 32, sampler=sampler), until=options.steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}, {run.world_size} replicas", flush=True)
        notify(f"STATUS=step {step} of {options.steps}, {run.world_size} replicas")
        if options.checkpoints and ((step + 1) % options.every == 0 or step + 1 == options.steps):
            run.save(options.checkpoints)
        time.sleep(options.pace)
    notify("STOPPING=1")
    run.leave()
    if run.step < options.steps:
        print(f"stopped at step {run.step}", flush=True)
        return 143
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    print(f"end: step {run.step}, model {digest.hexdigest()[:16]}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
