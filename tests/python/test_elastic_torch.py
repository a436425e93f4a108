"""What `ringfold.Run` promises of modules and optimizers of torch."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from peers import DEADLINE, begin

torch = pytest.importorskip("torch")
ringfold = pytest.importorskip("ringfold")

from ringfold.elastic import prepare_optimizer


def test_a_module_and_its_optimizer_are_given_to_a_late_joiner(master: str) -> None:
    under_way, joined = threading.Event(), threading.Event()

    def peer(seed: int) -> tuple[list[bytes], int]:
        with lock:
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        state = {"model": model, "optimizer": optimizer, "lr": torch.tensor(0.1), "mask": torch.ones(3) > 0}
        chance = torch.Generator().manual_seed(seed)
        first = -1
        with ringfold.Run(master, state=state) as run:
            for step in run.steps(until=150):
                first = step if first < 0 else first
                if seed == 2:
                    joined.set()
                elif step >= 3:
                    under_way.set()
                    time.sleep(0 if joined.is_set() else 0.03)
                x = torch.randn(16, 4, generator=chance)
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                run.average([p.grad for p in model.parameters()])
                optimizer.step()
        tensors = [
            *model.parameters(),
            *(optimizer.state[p][k] for p in model.parameters() for k in ("step", "exp_avg")),
        ]
        return [tensor.detach().numpy().tobytes() for tensor in tensors], first

    lock = threading.Lock()
    futures = [begin(lambda seed=seed: peer(seed)) for seed in range(2)]
    assert under_way.wait(DEADLINE)
    third = peer(2)
    others = [future.result(DEADLINE) for future in futures]
    assert third[1] > 3
    assert third[0] == others[0][0] == others[1][0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("Adam", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
        ("AdamW", {"lr": 0.1}),
        ("NAdam", {"lr": 0.1}),
        ("RAdam", {"lr": 0.1}),
        ("Adamax", {"lr": 0.1}),
        ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5}),
        ("Adadelta", {"lr": 0.1}),
        ("RMSprop", {"lr": 0.1, "momentum": 0.9, "centered": True}),
        ("Rprop", {"lr": 0.1}),
        ("ASGD", {"lr": 0.1}),
    ],
)
def test_a_prepared_optimizer_trains_as_one_that_begins_with_nothing(
    name: str, options: dict[str, Any]
) -> None:

    def trained(prepare: bool) -> list[bytes]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        if prepare:
            before = [p.detach().clone() for p in model.parameters()]
            prepare_optimizer(optimizer)
            assert all(torch.equal(p, old) and p.grad is None for p, old in zip(model.parameters(), before))
            assert name == "SGD" or optimizer.state
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    assert trained(True) == trained(False)
