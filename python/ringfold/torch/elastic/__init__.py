"""Replicas that come and go under stock PyTorch.

import ringfold.torch.elastic as elastic

run = elastic.join("10.0.0.7:48148", name="replica-3")
model = DDP(model, process_group=run.replica_group)
optimizer = torch.optim.AdamW(model.parameters())
sampler = elastic.Sampler(dataset, run)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
run.replicate(model, optimizer, sampler=sampler)
for step, batch in run.batches(loader, until=1000):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
run.leave()
"""

from __future__ import annotations

from ringfold.torch.elastic.diloco import DiLoCo
from ringfold.torch.elastic.policy import Policy
from ringfold.torch.elastic.run import ElasticRun, join
from ringfold.torch.elastic.sampler import Sampler

__all__ = ["DiLoCo", "ElasticRun", "Policy", "Sampler", "join"]
