"""A transformer in replicas of several ranks that come and go: FSDP2, bf16, warm-up, clipping, checkpoints.

Start a master (`pccl_master`), then this once for each replica:

    RINGFOLD_MASTERS=127.0.0.1:48148 \\
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/python/elastic_fsdp.py
"""

import argparse
import hashlib

import ringfold.torch.elastic as elastic
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, TensorDataset

WIDTH, TOKENS, LENGTH = 64, 32, 16
parser = argparse.ArgumentParser(description="Elastic training with FSDP2.")
parser.add_argument("--master", metavar="HOST:PORT", help="default: RINGFOLD_MASTERS")
parser.add_argument("--replicas", type=int, default=1, help="wait while there are fewer (%(default)s)")
parser.add_argument("--steps", type=int, default=200, help="steps of the run (%(default)s)")
parser.add_argument("--checkpoints", default="checkpoints", help="their directory (%(default)s)")
options = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
run = elastic.join(options.master, policy=elastic.Policy(replicas_min=options.replicas))
block = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
body = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
model = torch.nn.Sequential(torch.nn.Embedding(TOKENS, WIDTH), body, torch.nn.Linear(WIDTH, TOKENS))
sharding = {
    "mesh": init_device_mesh(device, (run.replica.ranks,)),
    "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
}
for layer in (*body.layers, model.to(device)):
    fully_shard(layer, **sharding)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
tokens = torch.randint(TOKENS, (4096, LENGTH), generator=torch.Generator().manual_seed(1))
data = TensorDataset(tokens, (tokens * 3 + 1) % TOKENS)
sampler = elastic.Sampler(data, run)
run.replicate(model, optimizer, scheduler=warmup, sampler=sampler)
run.restore(options.checkpoints)
for step, (x, y) in run.batches(DataLoader(data, 16, sampler=sampler), until=options.steps):
    loss = torch.nn.functional.cross_entropy(
        model(x.to(device)).float().flatten(0, 1), y.to(device).flatten()
    )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    if step % 10 == 9:
        run.save(options.checkpoints)
    print(f"step {step}: loss {loss.item():.4f}, {run.world_size} replicas", flush=True)
digest = hashlib.sha256(
    b"".join(p.full_tensor().detach().cpu().numpy().tobytes() for p in model.parameters())
)
print(f"end: step {run.step}, model {digest.hexdigest()[:16]}", flush=True)
run.leave()
