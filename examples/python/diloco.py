"""DiLoCo: each peer trains a small transformer for a while, then all peers average their progress.

Start a master (`pccl_master`), then this program twice or more. More peers may join while it runs:

    python examples/python/diloco.py

The network is used once per phase, not once per step, so slow links between distant sites are enough.
"""

import argparse
import sys

import pccl
import ringfold
import torch
from tiny_transformer import Language, TinyTransformer, evaluate, fingerprint


def main() -> int:
    parser = argparse.ArgumentParser(description="DiLoCo with a small transformer; start two peers or more.")
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
    # The outer optimizer is SGD with Nesterov momentum by default.
    diloco = ringfold.DiLoCo(model)
    with ringfold.Run(options.master, state=diloco, wait_timeout=options.timeout, connect_attempts=15) as run:
        for phase in run.steps(until=options.phases):
            for _ in range(options.inner):
                inner_optimizer.zero_grad()
                model.loss(language.sample(options.batch)).backward()
                inner_optimizer.step()
            # A peer that has seen more sequences has more weight.
            diloco.step(run, weight=options.inner * options.batch)
            # From here to the next phase the model is the same on all peers.
            done = f"phase {phase + 1}/{options.phases}"
            print(f"{done}: loss {evaluate(model, language):.4f}, {run.world_size} peers")
    if run.was_stopped:
        print(f"stopped in phase {run.revision}")
        return 0
    loss = evaluate(model, language)
    print(f"done: loss {loss:.4f}, lower bound {language.floor:.4f}, model {fingerprint(model)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except TimeoutError as error:
        print(f"diloco: {error}", file=sys.stderr)
        sys.exit(3)
    except pccl.PCCLError as error:
        sys.exit(f"diloco: {error}")
