"""What `ringfold.DiLoCo` computes, compared with the same computation by hand in one process."""

from __future__ import annotations

import copy
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peers import DEADLINE, begin, together

torch = pytest.importorskip("torch")
ringfold = pytest.importorskip("ringfold")
pccl = pytest.importorskip("pccl")

WEIGHTS = (3.0, 1.0, 4.0)


def new_model() -> Any:
    chance = torch.Generator().manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance) * 0.3)
    return model


def batch(chance: Any) -> tuple[Any, Any]:
    x = torch.randn(32, 4, generator=chance)
    return x, torch.sin(x.sum(1, keepdim=True))


def train_phase(model: Any, peer: int, phase: int, steps: int = 5) -> None:
    """Inner steps on data that depends on peer and phase alone."""
    chance = torch.Generator().manual_seed(1000 * peer + phase)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        x, y = batch(chance)
        optimizer.zero_grad()
        (model(x.to(model[0].weight.dtype)) - y).square().mean().backward()
        optimizer.step()


def loss_of(model: Any) -> float:
    x, y = batch(torch.Generator().manual_seed(77))
    with torch.no_grad():
        return float((model(x.to(model[0].weight.dtype)) - y).square().mean())


def outer_sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.5, nesterov=True)


def peer(
    master: str,
    me: int,
    phases: int,
    *,
    model: Any = None,
    peers_min: int = 2,
    weighted: bool = True,
    each: Callable[[Any, Any, int], None] = lambda run, diloco, step: None,
    **options: Any,
) -> Any:
    """Trains a model to the end of the run."""
    model = model if model is not None else new_model()
    diloco = ringfold.DiLoCo(model, outer_sgd, **options)
    with ringfold.Run(master, state=diloco, peers_min=peers_min, name=f"d{me}") as run:
        for step in run.steps(until=phases):
            each(run, diloco, step)
            train_phase(model, me, step)
            diloco.step(run, weight=WEIGHTS[me] if weighted else None)
    return model


def by_hand(count: int, phases: int, *, overlap: bool, keep: bool = True) -> list[Any]:
    """The same computation with lists, for all peers in one process."""
    outer = [p.detach().clone().requires_grad_() for p in new_model().parameters()]
    optimizer = outer_sgd(outer)
    begins = [[x.detach().clone() for x in outer] for _ in range(count)]
    flying: list[list[Any]] | None = None

    def apply(sent: list[list[Any]]) -> None:
        for place, x in enumerate(outer):
            total = sent[0][place]
            for other in sent[1:]:
                total = total + other[place]
            x.grad = total / sum(WEIGHTS[:count])
        optimizer.step()

    for phase in range(phases):
        sent = []
        for me in range(count):
            model = new_model()
            with torch.no_grad():
                for p, value in zip(model.parameters(), begins[me]):
                    p.copy_(value)
            train_phase(model, me, phase)
            ends = [p.detach() for p in model.parameters()]
            sent.append([(b - y) * WEIGHTS[me] for b, y in zip(begins[me], ends)])
        if not overlap:
            apply(sent)
            begins = [[x.detach().clone() for x in outer] for _ in range(count)]
            continue
        if flying is not None:
            apply(flying)
        flying = sent
        for me in range(count):
            begins[me] = [
                x.detach() - s / WEIGHTS[me] if keep else x.detach().clone() for x, s in zip(outer, sent[me])
            ]
    if flying is not None:
        apply(flying)
    return [x.detach() for x in outer]


def bits(model: Any) -> list[bytes]:
    return [p.detach().float().numpy().tobytes() for p in model.parameters()]


def assert_near(model: Any, expected: list[Any]) -> None:
    for mine, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(mine.detach(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3])
def test_in_step_equals_the_computation_by_hand(master: str, count: int) -> None:
    models = together(*(lambda me=me: peer(master, me, 6, peers_min=count) for me in range(count)))
    assert all(bits(model) == bits(models[0]) for model in models)
    assert_near(models[0], by_hand(count, 6, overlap=False))
    assert loss_of(models[0]) < 0.7 * loss_of(new_model())


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_overlapped_equals_the_delayed_computation_by_hand(master: str, count: int, keep: bool) -> None:
    models = together(
        *(
            lambda me=me: peer(master, me, 7, peers_min=count, overlap=True, keep_drift=keep)
            for me in range(count)
        )
    )
    assert all(bits(model) == bits(models[0]) for model in models)
    assert_near(models[0], by_hand(count, 7, overlap=True, keep=keep))


def test_alone_overlapped_with_plain_sgd_equals_training_without_an_outer_loop(master: str) -> None:
    model = new_model()
    diloco = ringfold.DiLoCo(model, lambda parameters: torch.optim.SGD(parameters, lr=1.0), overlap=True)
    with ringfold.Run(master, state=diloco, peers_min=1) as run:
        for step in run.steps(until=5):
            train_phase(model, 0, step)
            diloco.step(run)
    plain = new_model()
    for step in range(5):
        train_phase(plain, 0, step)
    assert_near(model, [p.detach() for p in plain.parameters()])


@pytest.mark.parametrize("overlap", [False, True])
def test_a_newcomer_takes_over_the_outer_state_and_all_end_equal(master: str, overlap: bool) -> None:
    under_way, joined = threading.Event(), threading.Event()

    def each(_run: Any, _diloco: Any, step: int) -> None:
        if step >= 3 and not joined.is_set():
            under_way.set()
            time.sleep(0.03)

    def late(run: Any, diloco: Any, step: int) -> None:
        if run.is_newcomer:
            joined.set()
            # It begins with the state of the run.
            expected = diloco.outer_parameters
            assert all(torch.equal(p, expected[name]) for name, p in diloco.model.named_parameters())
            assert step > 3

    models = [begin(lambda me=me: peer(master, me, 150, overlap=overlap, each=each)) for me in range(2)]
    assert under_way.wait(DEADLINE)
    stranger = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    third = peer(master, 2, 150, model=stranger, overlap=overlap, each=late)
    ended = [future.result(DEADLINE) for future in models]
    assert joined.is_set()
    assert bits(ended[0]) == bits(ended[1]) == bits(third)
    assert loss_of(third) < 0.5 * loss_of(new_model())


@pytest.mark.parametrize("overlap", [False, True])
def test_quantised_pseudo_gradients_leave_all_peers_equal_and_the_loss_falling(
    master: str, overlap: bool
) -> None:
    options = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX)
    models = together(
        *(lambda me=me: peer(master, me, 20, overlap=overlap, quantization=options) for me in range(2))
    )
    assert bits(models[0]) == bits(models[1])
    assert loss_of(models[0]) < 0.6 * loss_of(new_model())


def test_bfloat16_models_have_float32_outer_parameters(master: str) -> None:
    models = together(
        *(lambda me=me: peer(master, me, 20, model=new_model().bfloat16(), weighted=False) for me in range(2))
    )
    assert bits(models[0]) == bits(models[1])
    assert loss_of(models[0]) < 0.7 * loss_of(new_model())


@pytest.mark.parametrize("overlap", [False, True])
def test_if_all_weights_are_zero_nothing_moves_and_nothing_is_nan(master: str, overlap: bool) -> None:
    def idle() -> Any:
        model = new_model()
        diloco = ringfold.DiLoCo(model, overlap=overlap)
        with ringfold.Run(master, state=diloco) as run:
            for step in run.steps(until=3):
                train_phase(model, 0, step)
                diloco.step(run, weight=0.0)
        return model

    for model in together(idle, idle):
        assert bits(model) == bits(new_model())


@pytest.mark.parametrize(("buffers", "apart"), [("newcomers", 30), ("shared", 10), ("local", 31)])
def test_buffers_and_frozen_parameters_are_shared_as_configured(
    master: str, buffers: str, apart: int
) -> None:
    def start(me: int) -> tuple[float, float]:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        model[2].weight.requires_grad_(False).fill_(me)
        model[1].running_mean.fill_(me)
        diloco = ringfold.DiLoCo(model, buffers=buffers)
        with ringfold.Run(master, state=diloco) as run:
            for _ in run.steps(until=3):
                model[1].running_mean += 10 * me
                diloco.step(run)
        return float(model[1].running_mean[0]), float(model[2].weight.detach()[0, 0])

    (one, frozen), (other, also) = together(lambda: start(0), lambda: start(1))
    assert frozen == also
    # Peer 1 adds 10 in each of three phases; the mode decides what of that is shared.
    assert abs(other - one) == apart


def test_misuse_is_reported(master: str) -> None:
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        ringfold.DiLoCo(torch.nn.ReLU())
    diloco = ringfold.DiLoCo(new_model(), overlap=True)
    with (
        pytest.raises(RuntimeError, match="state=diloco"),
        ringfold.Run(master, state={"x": torch.zeros(1)}, peers_min=1) as run,
    ):
        diloco.step(run)
    with (
        pytest.raises(RuntimeError, match="once in every step"),
        ringfold.Run(master, state=diloco, peers_min=1, peer_group=1) as run,
    ):
        for _ in run.steps(until=2):
            pass
    diloco = ringfold.DiLoCo(copy.deepcopy(new_model()))
    with ringfold.Run(master, state=diloco, peers_min=1, peer_group=2) as run:
        for _ in run.steps(until=1):
            with pytest.raises(ValueError, match="finite"):
                diloco.step(run, weight=float("nan"))


@pytest.mark.skipif(
    not (pccl.cuda.is_available() and torch.cuda.is_available()), reason="there is no CUDA device here"
)
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("overlap", [False, True])
def test_models_on_a_gpu_are_trained_as_those_on_the_cpu(master: str, overlap: bool, device: Any) -> None:
    def gpu(me: int) -> Any:
        model = new_model().cuda()
        diloco = ringfold.DiLoCo(model, outer_sgd, overlap=overlap, device=device)
        with ringfold.Run(master, state=diloco) as run:
            for step in run.steps(until=6):
                # The inner steps are made on the CPU, so that their rounding is that of the computation by hand.
                twin = copy.deepcopy(model).cpu()
                train_phase(twin, me, step)
                with torch.no_grad():
                    for p, trained in zip(model.parameters(), twin.parameters(), strict=True):
                        p.copy_(trained)
                diloco.step(run, weight=WEIGHTS[me])
        return model.cpu()

    models = together(lambda: gpu(0), lambda: gpu(1))
    assert bits(models[0]) == bits(models[1])
    assert_near(models[0], by_hand(2, 6, overlap=overlap))


PEER = """
import hashlib, pathlib, sys, time
import torch, ringfold

master, seed, until, overlap = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True"
torch.set_num_threads(1)
torch.manual_seed(seed)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
diloco = ringfold.DiLoCo(model, lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.5, nesterov=True), overlap=overlap)

print("ready", flush=True)
while not pathlib.Path(sys.argv[5]).exists():
    time.sleep(0.01)

def report(step):
    digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in diloco.outer_parameters.values())).hexdigest()
    print(f"begins {step} {digest}", flush=True)

with ringfold.Run(master, state=diloco, name=f"d{seed}") as run:
    for step in run.steps(until=until):
        report(step)
        for _ in range(4):
            x = torch.randn(32, 4)
            loss = (model(x) - torch.sin(x.sum(1, keepdim=True))).square().mean()
            inner.zero_grad()
            loss.backward()
            inner.step()
            time.sleep(0.01)
        diloco.step(run, weight=seed + 1)
        print(f"loss {step} {loss.item():.4f} of {run.world_size}", flush=True)
report(run.revision)
print(f"ended, stopped: {run.was_stopped}, loss {loss.item()}", flush=True)
"""


def begin_together(spawn: Any, gate: Path, peers: list[tuple[Any, ...]]) -> list[Any]:
    """Starts processes that join together, when all are ready: a run is short."""
    children = [spawn(PEER, *arguments, gate) for arguments in peers]
    for child in children:
        child.wait_for("ready", DEADLINE)
    gate.touch()
    return children


@pytest.mark.parametrize("overlap", [False, True])
def test_survivors_go_on_with_equal_outer_bits_when_a_peer_is_killed(
    master: str, spawn_with_torch: Any, tmp_path: Path, overlap: bool
) -> None:
    peers = begin_together(
        spawn_with_torch, tmp_path / "gate", [(master, seed, 30, overlap) for seed in range(3)]
    )
    for child in peers:
        child.wait_for("begins 5 ", DEADLINE)
    peers[1].kill()
    outputs = [peers[0].succeed(DEADLINE), peers[2].succeed(DEADLINE), peers[1].output]
    digests = [
        {line.split()[1]: line.split()[2] for line in output.splitlines() if line.startswith("begins ")}
        for output in outputs
    ]
    for step in range(31):
        assert len({seen[str(step)] for seen in digests if str(step) in seen}) == 1, f"step {step}"
    assert " of 2" in outputs[0] and "stopped: False" in outputs[0]
    assert float(outputs[0].split()[-1]) < 0.4


def test_sigterm_leaves_an_overlapped_run_and_the_others_go_on(
    master: str, spawn_with_torch: Any, tmp_path: Path
) -> None:
    peers = begin_together(
        spawn_with_torch, tmp_path / "gate", [(master, seed, 30, True) for seed in range(3)]
    )
    for child in peers:
        child.wait_for("begins 5 ", DEADLINE)
    peers[2].signal(signal.SIGTERM)
    assert "stopped: True" in peers[2].succeed(20)
    for child in peers[:2]:
        assert "ended, stopped: False" in child.succeed(DEADLINE)
