"""PyTorch Lightning's Trainer in a run whose replicas come and go.

Start a master (`pccl_master`), then this program as often as you like. Start or kill replicas while it runs. All replicas end
with the same bits, and print a fingerprint of the model. Needs the package `lightning`.
"""

import argparse
import hashlib
import time

import lightning
import ringfold.torch.elastic as elastic
import torch
from ringfold.torch.elastic.lightning import ElasticCallback, ElasticLoader
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self, run: elastic.ElasticRun, pace: float) -> None:
        super().__init__()
        self.run, self.pace = run, pace
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(self.pace)
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        print(f"step {self.run.step}: loss {loss.item():.4f}, {self.run.world_size} replicas", flush=True)
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


parser = argparse.ArgumentParser(description="Elastic data-parallel training with Lightning's Trainer.")
parser.add_argument("--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s")
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
model, sampler = Classifier(run, options.pace), elastic.Sampler(data, run)
loader = ElasticLoader(run, DataLoader(data, batch_size=32, sampler=sampler), until=options.steps)
trainer = lightning.Trainer(
    **{"accelerator": "cpu", "devices": 1, "max_epochs": 1, "gradient_clip_val": 1.0},
    **{"logger": False, "enable_checkpointing": False, "enable_progress_bar": False},
    callbacks=[ElasticCallback(run, sampler=sampler)],
)
trainer.fit(model, loader)
run.leave()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print(f"end: step {run.step}, model {digest.hexdigest()[:16]}", flush=True)
