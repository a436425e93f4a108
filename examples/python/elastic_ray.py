"""Ray actors as the replicas of a run: Ray restarts one that died, and it joins again.

Start this program once; it starts a master and the replicas on the machines of a Ray cluster, or on this one. A replica is killed
at step 50, to show what happens. All replicas end with the same bits. Needs the package `ray`.
"""

import argparse
import hashlib
import os
import time

import ray
import ringfold.ray
import ringfold.torch.elastic as elastic
import torch
from torch.utils.data import DataLoader, TensorDataset


def train(peer: ringfold.ray.PeerContext, steps: int, pace: float) -> str:
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(1)  # The data is the same on all replicas.
    labels = torch.randint(10, (5000,), generator=chance)
    noise = 0.8 * torch.randn(5000, 64, generator=chance)
    data = TensorDataset(torch.randn(10, 64, generator=chance)[labels] + noise, labels)
    run = elastic.join(peer.masters, name=peer.name, policy=elastic.Policy(replicas_min=peer.peers))
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = elastic.Sampler(data, run)
    run.replicate(model, optimizer, sampler=sampler)
    first = None
    for step, (x, y) in run.batches(DataLoader(data, 32, sampler=sampler), until=steps):
        first = step if first is None else first
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 50 and peer.number == 0:
            os.kill(os.getpid(), 9)  # Its successor joins at a later step.
        if step % 50 == 0:
            peer.report(f"step {step}, loss {loss.item():.4f}, {run.world_size} replicas")
        time.sleep(pace)
    run.leave()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return f"from step {first} to {run.step}, model {digest.hexdigest()[:16]}"


parser = argparse.ArgumentParser(description="Elastic data-parallel training in Ray actors.")
parser.add_argument(
    "--master", default=1, metavar="HOST:PORT", help="a master that runs; default: one is started"
)
parser.add_argument("--steps", type=int, default=200, help="steps of the run (%(default)s)")
parser.add_argument("--replicas", type=int, default=2, help="number of actors (%(default)s)")
parser.add_argument("--pace", type=float, default=0.0, help="seconds between steps (%(default)s)")
options = parser.parse_args()
ray.init(include_dashboard=False)
ends = ringfold.ray.run(
    train,
    options.replicas,
    masters=options.master,
    kwargs={"steps": options.steps, "pace": options.pace},
    on_report=lambda number, text: print(f"replica-{number}: {text}", flush=True),
)
for number, end in enumerate(ends):
    print(f"replica-{number}: {end}", flush=True)
