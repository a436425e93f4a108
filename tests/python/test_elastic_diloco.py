"""DiLoCo on an elastic run: replicas that are left or join hold the same bits, and the loss is near that of plain DDP."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from peers import DEADLINE, together

torch = pytest.importorskip("torch")

import pccl
import ringfold.torch.elastic as elastic
from ringfold.torch.elastic.outer import fragments_of

VARIANTS = {
    "synchronous": {"every": 8},
    "overlapped": {"every": 8, "delay": 3},
    "streaming": {"every": 8, "fragments": 2, "delay": 4},
    "quantised": {"every": 8, "fragments": 4, "delay": 1, "quantised": True},
}

REPLICA = """
import hashlib, json, logging, os, sys, time

import torch
from torch.utils.data import DataLoader, TensorDataset

import pccl
import ringfold.torch.elastic as elastic

master, name, until, settings, dies_at, pause = sys.argv[1:]
settings = json.loads(settings)
quantised = settings.pop("quantised", False)
torch.set_num_threads(1)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
torch.manual_seed(sum(name.encode()))
run = elastic.join(master, name=name, policy=elastic.Policy(replicas_min=3))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.arange(600), torch.randn(600, 8, generator=torch.Generator().manual_seed(1)))
sampler = elastic.Sampler(data, run)
settings = elastic.DiLoCo(
    **settings, quantization=pccl.QuantizationOptions(pccl.DataType.UINT8) if quantised else None
)
run.replicate(model, optimizer, sampler=sampler, diloco=settings)
for step, (numbers, batch) in run.batches(DataLoader(data, batch_size=4, sampler=sampler), until=int(until)):
    used = numbers.tolist() if run._outer._weight else []
    print(f"step {step} of {run.world_size}, epoch {sampler.epoch}: {used}", flush=True)
    optimizer.zero_grad()
    (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
    if step == int(dies_at):
        os.kill(os.getpid(), 9)
    optimizer.step()
    time.sleep(float(pause))
outer = run._outer
digest = hashlib.sha256()
states = (*outer.module.state_dict().values(), *(v for s in outer.optimizer.state.values() for v in s.values()))
for tensor in (*model.state_dict().values(), *states):
    digest.update(tensor.detach().numpy().tobytes())
print("end", run.step, sampler.epoch, len(sampler), digest.hexdigest(), flush=True)
run.leave()
"""

UNTIL = 64


@pytest.mark.parametrize("variant", VARIANTS)
def test_replicas_that_are_left_or_join_hold_the_same_bits(
    variant: str, master: str, spawn_with_torch: Any
) -> None:
    def replica(name: str, dies_at: int = -1) -> Any:
        settings = json.dumps(VARIANTS[variant])
        return spawn_with_torch(REPLICA, master, name, UNTIL, settings, dies_at, 0.002)

    # Killed within an interval.
    first = [replica("a"), replica("b"), replica("c", 21)]
    first[0].wait_for("step 10 ", DEADLINE)
    newcomer = replica("d")
    ends = {each.wait_for("end ", DEADLINE) for each in (first[0], first[1], newcomer)}
    assert len(ends) == 1 and next(iter(ends)).startswith(f"end {UNTIL} ")
    # The run waited for the newcomer when one was lost.
    assert " of 3" in newcomer.wait_for(f"step {UNTIL - 1} ", DEADLINE)
    # Every sample was used once in the first epoch. The killed one counts up to a boundary that it took part in.
    others = Counter(sample for each in (first[0], first[1], newcomer) for sample in used_by(each, UNTIL))
    found = [Counter(used_by(first[2], boundary)) + others for boundary in range(16, 22)]
    assert Counter(range(600)) in found


def used_by(replica: Any, until: int) -> list[int]:
    """The samples of the first epoch that a replica used before this step."""
    lines = re.findall(r"^step (\d+) of \d+, epoch 0: (.*)$", replica.output, re.MULTILINE)
    return [sample for step, numbers in lines if int(step) < until for sample in json.loads(numbers)]


def new_model() -> Any:
    chance = torch.Generator().manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance) * 0.3)
    return model


def samples(count: int, seed: int) -> tuple[Any, Any]:
    """A regression problem with noise."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=chance)
    noise = torch.randn(count, 1, generator=chance)
    return x, torch.sin(x[:, :2].sum(1, keepdim=True)) + x[:, 2:3] + 0.3 * noise


def loss_of(model: Any) -> float:
    x, y = samples(4000, 77)
    with torch.no_grad():
        return float((model(x) - y).square().mean())


def train(
    master: str,
    replicas: int,
    until: int,
    diloco: Any,
    inner: Any,
    *,
    each: Callable[[Any, Any], None] = lambda run, model: None,
    restore: Path | None = None,
    leave_at: int = -1,
) -> Any:
    """Trains one replica of several."""
    model = new_model()
    optimizer = inner(model.parameters())
    run = elastic.join(master, policy=elastic.Policy(replicas_min=replicas))
    data = torch.utils.data.TensorDataset(*samples(8000, 5))
    sampler = elastic.Sampler(data, run)
    run.replicate(model, optimizer, sampler=sampler, diloco=diloco)
    assert restore is None or run.restore(restore)
    for step, (x, y) in run.batches(torch.utils.data.DataLoader(data, 16, sampler=sampler), until=until):
        each(run, model)
        if step == leave_at:
            break
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    run.leave()
    return model


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=5e-3)


def bits(model: Any) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


LOSSES = {
    "synchronous": elastic.DiLoCo(every=16),
    "overlapped": elastic.DiLoCo(every=16, delay=5),
    "streaming": elastic.DiLoCo(every=16, fragments=4, delay=2),
    "streaming, quantised": elastic.DiLoCo(
        every=16, fragments=4, delay=2, quantization=pccl.QuantizationOptions(pccl.DataType.UINT8)
    ),
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Replicas that are threads share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_loss_is_near_that_of_averaged_gradients(master: str) -> None:
    losses = {}
    for name, settings in {"DDP": None, **LOSSES}.items():
        one, other = together(*[lambda s=settings: train(master, 2, 400, s, adamw)] * 2)
        assert bits(one) == bits(other), name
        losses[name] = loss_of(one)
        print(f"{name}: {losses[name]:.4f}")
    # The noise alone is 0.09.
    assert losses["DDP"] < 0.15 < 0.3 * loss_of(new_model())
    assert all(loss < 1.4 * losses["DDP"] for loss in losses.values())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("settings", [(8,), (8, 1, 3), (8, 2, 4), (8, 4, 1)], ids=str)
def test_one_replica_that_takes_its_own_progress_trains_as_without_an_outer_loop(
    settings: tuple[int, ...], master: str
) -> None:
    def sgd(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def plain(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=1.0)

    expected = train(master, 1, 45, None, sgd)
    model = train(master, 1, 45, elastic.DiLoCo(*settings, outer_optimizer=plain), sgd)
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("one_thread")
def test_a_replica_that_leaves_while_a_reduction_is_in_flight_does_not_stop_the_others(master: str) -> None:
    settings = elastic.DiLoCo(every=8, delay=4)
    leaving = [-1, -1, 10]
    models = together(*(lambda at=at: train(master, 3, 12, settings, adamw, leave_at=at) for at in leaving))
    assert bits(models[0]) == bits(models[1])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("delay", "applied"), [(0, 8), (3, 8), (7, 0)])
def test_a_checkpoint_has_the_outer_parameters_and_gives_back_later_samples(
    delay: int, applied: int, tmp_path: Path
) -> None:
    settings = elastic.DiLoCo(every=8, delay=delay)
    saved: list[list[bytes]] = []
    begun: list[tuple[int, int, list[bytes]]] = []

    def save(run: Any, _model: Any) -> None:
        if run.step == 13:
            run.save(tmp_path)
            saved.append(bits(run._outer.module))

    def note(run: Any, model: Any) -> None:
        if run.step == 14:
            begun.append((run.world_size, len(run._sampler), bits(model)))

    with pccl.MasterNode("127.0.0.1:0") as node:
        address = node.address
        together(*[lambda: train(address, 2, 20, settings, adamw, each=save)] * 2)
    # The second one takes the state of the first.
    with pccl.MasterNode("127.0.0.1:0") as node:
        models = together(
            *(
                lambda where=where: train(node.address, 2, 30, settings, adamw, each=note, restore=where)
                for where in (tmp_path, None)
            )
        )
    assert bits(models[0]) == bits(models[1])
    assert saved[0] == saved[1]
    assert begun == [(2, 8000 - 2 * 16 * applied, saved[0])] * 2


KINDS = """
import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ringfold.torch.elastic as elastic

torch.set_num_threads(1)
data = TensorDataset(torch.randn(300, 4, generator=torch.Generator().manual_seed(1)))
for kind in ("plain", "ddp", "fsdp"):
    torch.manual_seed(0)
    run = elastic.join(sys.argv[1])
    group = run.replica_group
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    if kind == "ddp":
        model = DDP(model, process_group=group)
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = elastic.Sampler(data, run)
    run.replicate(model, optimizer, sampler=sampler, diloco=elastic.DiLoCo(every=8, fragments=2, delay=2))
    for _, (batch,) in run.batches(DataLoader(data, 8, sampler=sampler), until=20):
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    run.leave()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    print("end", kind, [p.detach().double().sum().item() for p in whole], flush=True)
"""


def test_plain_modules_ddp_and_fsdp_are_trained_alike(master: str, spawn_with_torch: Any) -> None:
    output = spawn_with_torch(KINDS, master).succeed(DEADLINE)
    ends = dict(re.findall(r"^end (\w+) (.*)$", output, re.MULTILINE))
    assert ends["plain"] == ends["ddp"] == ends["fsdp"]


@pytest.mark.parametrize("sizes", [[1] * 12, [100, 1, 1, 1], [1, 1, 1, 100], [7, 3, 9, 2, 8, 1, 5]], ids=str)
def test_fragments_are_contiguous_and_of_about_equal_size(sizes: list[int]) -> None:
    for count in range(1, len(sizes) + 1):
        groups = fragments_of(sizes, count)
        assert len(groups) == count and all(groups)
        assert [number for group in groups for number in group] == list(range(len(sizes)))
        assert max(sum(sizes[i] for i in group) for group in groups) <= sum(sizes) / count + max(sizes)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong, text in (
        ({"every": 0}, "invalid every 0: must be at least 1"),
        ({"every": 8, "fragments": 0}, "invalid fragments 0: must be at least 1"),
        ({"every": 50, "fragments": 4}, "invalid every 50: must be divisible by fragments=4"),
        ({"every": 8, "delay": -1}, "invalid delay -1: must be 0 to 8"),
        ({"every": 8, "fragments": 2, "delay": 5}, "invalid delay 5: must be 0 to 4"),
    ):
        with pytest.raises(ValueError, match=text):
            elastic.DiLoCo(**wrong)
    model = new_model()
    for settings, policy, text in (
        (elastic.DiLoCo(every=10, fragments=5), elastic.Policy(), "invalid fragments 5: the model has 4"),
        (elastic.DiLoCo(every=10), elastic.Policy(batch=8), "invalid policy batch=8"),
    ):
        run = elastic.join("127.0.0.1:1", policy=policy)
        with pytest.raises(ValueError, match=text):
            run.replicate(model, adamw(model.parameters()), diloco=settings)
