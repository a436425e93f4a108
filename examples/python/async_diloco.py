"""Overlapped DiLoCo: the progress of one phase is averaged while the next phase computes.

Start a master (`pccl_master`), then this program twice or more. More peers may join while it runs:

    python examples/python/async_diloco.py

No peer waits for the network as long as it can transfer the model once per phase. The cost: peers receive each
other's progress one phase later than in diloco.py.
"""

import argparse
import sys

import pccl
import ringfold
import torch
from tiny_transformer import Language, TinyTransformer, evaluate, fingerprint


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Overlapped DiLoCo with a small transformer; start two peers or more."
    )
    parser.add_argument(
        "--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument("--phases", type=int, default=20, help="phases of the run (%(default)s)")
    parser.add_argument(
        "--inner", type=int, default=12, help="steps per phase; peers may differ (%(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=32, help="sequences per step; peers may differ (%(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for another peer (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    language = Language()
    model = TinyTransformer()
    print(f"loss {evaluate(model, language):.4f} before the first phase")
    inner_optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    diloco = ringfold.DiLoCo(model, outer_optimizer, overlap=True)
    with ringfold.Run(options.master, state=diloco, wait_timeout=options.timeout, connect_attempts=15) as run:
        for phase in run.steps(until=options.phases):
            for _ in range(options.inner):
                inner_optimizer.zero_grad()
                model.loss(language.sample(options.batch)).backward()
                inner_optimizer.step()
            # Only marks the end of the phase. The average of the previous phase has arrived meanwhile.
            diloco.step(run, weight=options.inner * options.batch)
            # This is the peer's local model. All peers are equal again after the average of the last phase.
            done = f"phase {phase + 1}/{options.phases}"
            print(f"{done}: loss {evaluate(model, language):.4f}, {run.world_size} peers")
    if run.was_stopped:
        print(f"stopped in phase {run.revision}")
        return 0
    loss = evaluate(model, language)
    print(f"done: loss {loss:.4f}, lower bound {language.floor:.4f}, model {fingerprint(model)}")
    return 0


def outer_optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Outer gradients are one phase old here, so they use less momentum than in diloco.py."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.5, nesterov=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except TimeoutError as error:
        print(f"async_diloco: {error}", file=sys.stderr)
        sys.exit(3)
    except pccl.PCCLError as error:
        sys.exit(f"async_diloco: {error}")
