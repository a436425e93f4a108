"""DistributedDataParallel over Ringfold, in ten lines.

torchrun --nproc-per-node 2 ddp_ten_lines.py
"""

import ringfold.torch  # noqa: F401  (registers the backend)
import torch
import torch.distributed as dist

dist.init_process_group("ringfold")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    data = torch.randn(32, 8)
    loss = (model(data).squeeze(1) - data.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weight = next(model.parameters())
print(
    f"rank {dist.get_rank()}: weights from {weight.min().item():.3f} to {weight.max().item():.3f}\n", end=""
)
dist.destroy_process_group()
