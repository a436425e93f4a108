"""An elastic run in fifteen lines: start a master (`pccl_master`), then this program twice or more."""

import argparse

import numpy as np
import ringfold

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--master", default="127.0.0.1:48148", metavar="HOST:PORT")
random = np.random.default_rng()

goal = np.arange(8, dtype=np.float32)
weights = np.zeros(8, dtype=np.float32)
with ringfold.Run(parser.parse_args().master, state={"weights": weights}) as run:
    for step in run.steps(until=5):
        gradient = weights - goal + random.normal(0, 0.1, 8).astype(np.float32)
        run.average(gradient)
        weights -= 0.5 * gradient
        print(f"step {step}: {run.world_size} peers, weights {weights}")
