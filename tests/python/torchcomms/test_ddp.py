"""DistributedDataParallel over ringfold trains as it does over gloo, bit for bit.

Two ranks add two numbers, and a + b is b + a; so the sums do not depend on who reduces, and how.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from ports import free_port
from ranks import Ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from training import bits, new_net, process_group, train

# Buckets of a kilobyte, so that there are several of them.
SMALL = 0.001

Outcome = tuple[list[float], list[int]]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _outcome(model: nn.Module, losses: list[float]) -> Outcome:
    return losses, bits([*model.parameters(), *model.buffers()])


def plainly() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL)
    return _outcome(model, train(model, _sgd(model)))


def with_views_of_buckets() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL, gradient_as_bucket_view=True)
    return _outcome(model, train(model, _sgd(model)))


def with_a_static_graph() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL, static_graph=True)
    return _outcome(model, train(model, _sgd(model)))


def with_unused_parameters() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL, find_unused_parameters=True)
    turn = iter(range(100))

    def loss_of(model: nn.Module, data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        uses_spare = (next(turn) + dist.get_rank()) % 3 > 0
        return nn.functional.mse_loss(model(data, uses_spare), target)

    return _outcome(model, train(model, _sgd(model), loss_of))


def without_sync_in_every_other_step() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL)
    turn = iter(range(100))

    def loss_of(model: nn.Module, data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert isinstance(model, DDP)
        with model.no_sync() if next(turn) % 2 else nullcontext():
            nn.functional.mse_loss(model(data), target).backward()
        return nn.functional.mse_loss(model(data), target)

    return _outcome(model, train(model, _sgd(model), loss_of))


def with_uneven_inputs() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL)
    with Join([model]):
        losses = train(model, _sgd(model), count=3 + 2 * dist.get_rank())
    return _outcome(model, losses)


def with_halved_gradients() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return _outcome(model, train(model, _sgd(model)))


def with_power_sgd() -> Outcome:
    # One bucket: the hook's callbacks begin operations, and with several their order would be undefined.
    model = DDP(new_net())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return _outcome(model, train(model, _sgd(model)))


def with_a_hook_of_ones_own() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL)

    # Torch reads a hook's annotations, and postponed ones are texts.
    def hook(_, bucket):  # type: ignore[no-untyped-def]
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0].div_(dist.get_world_size()))

    model.register_comm_hook(None, hook)
    return _outcome(model, train(model, _sgd(model)))


def with_a_sharded_optimizer() -> Outcome:
    model = DDP(new_net(), bucket_cap_mb=SMALL)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    losses = train(model, optimizer)
    optimizer.consolidate_state_dict(0)
    return _outcome(model, losses)


def with_sparse_gradients() -> Outcome:
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 3)))

    def loss_of(model: nn.Module, data: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        words = (data.abs() * 10).long().clamp(max=49)
        return nn.functional.mse_loss(model(words), target)

    return _outcome(model, train(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of))


def with_frozen_parameters() -> Outcome:
    net = new_net()
    for parameter in net.spare.parameters():
        parameter.requires_grad = False
    model = DDP(net, bucket_cap_mb=SMALL)
    return _outcome(model, train(model, _sgd(model)))


VARIANTS: list[Callable[[], Outcome]] = [
    plainly,
    with_views_of_buckets,
    with_a_static_graph,
    with_unused_parameters,
    without_sync_in_every_other_step,
    with_uneven_inputs,
    with_halved_gradients,
    with_power_sgd,
    with_a_hook_of_ones_own,
    with_a_sharded_optimizer,
    with_sparse_gradients,
    with_frozen_parameters,
]


if torch.cuda.is_available():
    # Some versions of the hook take it for granted then that gradients are there.
    VARIANTS.remove(with_power_sgd)


def train_all(folder: Path, backends: list[str]) -> list[dict[str, Outcome]]:
    outcomes = []
    for backend in backends:
        with process_group(backend, folder):
            outcomes.append({variant.__name__: variant() for variant in VARIANTS})
    return outcomes


def test_every_way_of_ddp_gives_the_same_bits_as_gloo(ranks: Ranks, tmp_path: Path) -> None:
    for rank, (by_gloo, by_us) in enumerate(
        ranks.run(2, train_all, tmp_path, ["gloo", "ringfold"], deadline=180.0)
    ):
        for variant, expected in by_gloo.items():
            assert by_us[variant][0] == expected[0], f"losses of rank {rank}, {variant}"
            assert by_us[variant][1] == expected[1], f"parameters of rank {rank}, {variant}"


def train_plainly(folder: Path) -> list[Outcome]:
    outcomes = []
    for backend in ("gloo", "ringfold"):
        with process_group(backend, folder):
            outcomes.append(plainly())
    return outcomes


def test_three_ranks_train_as_with_gloo_within_rounding(ranks: Ranks, tmp_path: Path) -> None:
    for by_gloo, by_us in ranks.run(3, train_plainly, tmp_path, deadline=120.0):
        # Gloo adds around a ring, and so in an order of its own.
        torch.testing.assert_close(torch.tensor(by_us[0]), torch.tensor(by_gloo[0]), rtol=1e-5, atol=1e-6)


def fail_in_a_step(folder: Path) -> str:
    with process_group("ringfold", folder, 2.0):
        model = DDP(new_net())
        optimizer = _sgd(model)
        train(model, optimizer, count=1)
        if dist.get_rank() == 1:
            return "left"
        try:
            train(model, optimizer, count=1)
        except RuntimeError as error:
            return str(error)
    return "nothing was raised"


def test_a_step_without_the_other_rank_raises_and_names_it(ranks: Ranks, tmp_path: Path) -> None:
    first, second = ranks.run(2, fail_in_a_step, tmp_path)
    assert "rank 1" in first and second == "left"


def test_ddp_in_ten_lines_runs_under_torchrun() -> None:
    program = Path(__file__).parents[3] / "examples" / "python" / "ddp_ten_lines.py"
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    port = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    done = subprocess.run(
        [*run, *port, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1.000 to 1.000") == 2
