"""Ray actors as the replicas of a run: Ray restarts one that died, and it joins again.

Start a master (`pccl_master`), then this program once; it starts the replicas on the machines of a Ray cluster, or on this one.
A replica is killed at step 50, to show what happens. All replicas end with the same bits. Needs the package `ray`.
"""

import argparse
import hashlib
import os
import time

import ray
import ringfold.torch.elastic as elastic
import torch
from torch.utils.data import DataLoader, TensorDataset


# Ray starts an actor that died again, and repeats its call.
@ray.remote(max_restarts=-1, max_task_retries=-1)
class Replica:
    def train(self, options: argparse.Namespace, number: int) -> str:
        torch.set_num_threads(1)
        chance = torch.Generator().manual_seed(1)  # The data is the same on all replicas.
        labels = torch.randint(10, (5000,), generator=chance)
        noise = 0.8 * torch.randn(5000, 64, generator=chance)
        data = TensorDataset(torch.randn(10, 64, generator=chance)[labels] + noise, labels)
        policy = elastic.Policy(replicas_min=options.replicas)
        run = elastic.join(options.master, name=f"replica-{number}", policy=policy)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        optimizer = torch.optim.AdamW(model.parameters())
        sampler = elastic.Sampler(data, run)
        run.replicate(model, optimizer, sampler=sampler)
        first = None
        for step, (x, y) in run.batches(DataLoader(data, 32, sampler=sampler), until=options.steps):
            first = step if first is None else first
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 50 and number == 0:
                os.kill(os.getpid(), 9)  # Its successor joins at a later step.
            time.sleep(options.pace)
        run.leave()
        digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
        return f"from step {first} to {run.step}, model {digest.hexdigest()[:16]}"


parser = argparse.ArgumentParser(description="Elastic data-parallel training in Ray actors.")
parser.add_argument("--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s")
parser.add_argument("--steps", type=int, default=200, help="steps of the run (%(default)s)")
parser.add_argument("--replicas", type=int, default=2, help="number of actors (%(default)s)")
parser.add_argument("--pace", type=float, default=0.0, help="seconds between steps (%(default)s)")
options = parser.parse_args()
ray.init(include_dashboard=False)
replicas = [Replica.remote() for _ in range(options.replicas)]
ends = [replica.train.remote(options, number) for number, replica in enumerate(replicas)]
for number, end in enumerate(ray.get(ends)):
    print(f"replica-{number}: {end}", flush=True)
