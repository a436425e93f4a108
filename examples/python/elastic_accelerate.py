"""Hugging Face's Accelerate in a run whose replicas come and go.

Start a master (`pccl_master`), then this program as often as you like, alone or with `accelerate launch`. Start or kill
replicas while it runs. All replicas end with the same bits, and print a fingerprint of the model. Needs the package
`accelerate`.
"""

import argparse
import hashlib
import time

import ringfold.torch.elastic as elastic
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description="Elastic data-parallel training with Accelerate.")
    parser.add_argument(
        "--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument("--steps", type=int, default=200, help="steps of the run (%(default)s)")
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
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
    sampler = elastic.Sampler(data, run)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    accelerator = Accelerator(cpu=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    run.replicate(model, optimizer, scheduler=scheduler, sampler=sampler)
    for step, (x, y) in run.batches(loader, until=options.steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(f"step {step}: loss {loss.item():.4f}, {run.world_size} replicas", flush=True)
        time.sleep(options.pace)
    run.leave()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    print(f"end: step {run.step}, model {digest.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
