"""GPU figures of training with torch.distributed: a step of a model with 25 million parameters with and without DDP, in turns.

``gpu.py`` runs it as one of its jobs.
"""

import argparse
import statistics
import time
from collections.abc import Callable

TURNS, STEPS = 7, 5
WIDTH, LAYERS, BATCH = 1120, 20, 256
BUCKET_BYTES = 25 << 20


def ddp_rank(
    rank: int, world: int, arguments: argparse.Namespace, tell: Callable[[str, float], None]
) -> None:
    """One rank of the job."""
    # Before 2.14, torch does not find the backend by its name.
    import ringfold.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "ringfold", f"file://{arguments.folder}/meeting", rank=rank, world_size=world, device_id=device
    )

    def model() -> torch.nn.Module:
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        return torch.nn.Sequential(*layers).to(device)

    def step_of(model: torch.nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        data = torch.randn(BATCH, WIDTH, device=device)

        def step() -> None:
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def no_communication(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[device])
        future.set_result(bucket.buffer())
        return future

    silent = DistributedDataParallel(model())
    silent.register_comm_hook(None, no_communication)
    bucket = torch.zeros(BUCKET_BYTES // 4, device=device)
    acts = {
        "alone": step_of(model()),
        "silent": step_of(silent),
        "ddp": step_of(DistributedDataParallel(model())),
        "all_reduce": lambda: dist.all_reduce(bucket),
    }
    spent: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(TURNS + 2):
        for name, act in acts.items():
            torch.cuda.synchronize()
            dist.barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                act()
            torch.cuda.synchronize()
            if turn >= 2:
                spent[name].append(1e6 * (time.perf_counter() - began) / STEPS)
    for name, each in spent.items():
        tell(f"{name}_us", statistics.median(each))
    dist.destroy_process_group()


def ddp_table(found: dict[int, dict[str, dict[str, float]]]) -> list[str]:
    """The figures of all numbers of ranks, in lines."""
    lines = []
    for world, kinds in found.items():
        figures = kinds.get("ddp", {})
        if "ddp_us" in figures and "alone_us" in figures:
            alone, ddp = figures["alone_us"], figures["ddp_us"]
            lines.append(
                f"{world} ranks: a step takes {ddp / 1000:.2f} ms with DDP, {alone / 1000:.2f} without: {ddp / alone:.2f}; "
                f"with DDP that does not communicate {figures.get('silent_us', 0.0) / 1000:.2f} ms; "
                f"all_reduce of 25 MiB {figures.get('all_reduce_us', 0.0):.0f} us"
            )
    what = f"torch.distributed, 25 million parameters, medians of {TURNS}"
    return ["", what, *lines] if lines else []
