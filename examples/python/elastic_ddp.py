"""Stock DistributedDataParallel whose replicas come and go.

Start a master (`pccl_master`), then this program as often as you like, alone or under torchrun. Start or kill replicas while
it runs; torchrun restarts a killed one. All replicas end with the same bits, and print a fingerprint of the model:

    python examples/python/elastic_ddp.py
    torchrun --standalone --nproc-per-node 1 --max-restarts 3 examples/python/elastic_ddp.py
"""

import argparse
import hashlib
import os
import time

import ringfold.torch.elastic as elastic
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

# torchrun takes options that begin with --master for its own. Under torchrun, set the variable.
MASTER = os.environ.get("RINGFOLD_MASTERS", "127.0.0.1:48148")


def main() -> None:
    parser = argparse.ArgumentParser(description="Elastic data-parallel training with stock DDP.")
    parser.add_argument("--master", default=MASTER, metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=200, help="steps of the run (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="samples per step (%(default)s)")
    parser.add_argument("--replicas", type=int, default=1, help="wait while there are fewer (%(default)s)")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between steps (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(1)  # The data is the same on all replicas.
    labels = torch.randint(10, (5000,), generator=chance)
    points = torch.randn(10, 64, generator=chance)[labels] + 0.8 * torch.randn(5000, 64, generator=chance)
    data = TensorDataset(points, labels)

    run = elastic.join(options.master, policy=elastic.Policy(replicas_min=options.replicas))
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = DistributedDataParallel(model, process_group=run.replica_group)
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = elastic.Sampler(data, run)
    run.replicate(model, optimizer, sampler=sampler)
    for step, (x, y) in run.batches(DataLoader(data, options.batch, sampler=sampler), until=options.steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}, {run.world_size} replicas", flush=True)
        time.sleep(options.pace)
    run.leave()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    print(f"end: step {run.step}, model {digest.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
