"""Observe a communicator: a hook that counts calls, a log of signatures, and the flight recorder.

python examples/python/torchcomms/hooks.py
torchrun --nproc-per-node 2 examples/python/torchcomms/hooks.py
"""

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

import start
import torch
import torchcomms
from torchcomms.hooks import FlightRecorderHook, clog


def main() -> None:
    options = start.arguments(argparse.ArgumentParser(description="Hooks, a log, and the flight recorder."))
    device = torch.device(options.device)
    comm = torchcomms.new_comm("ringfold", device, name="hooks")
    rank = comm.get_rank()

    calls: Counter[str] = Counter()
    counting = comm.register_pre_hook(lambda op, op_id, args: calls.update([op.name]))
    log = Path(tempfile.mkdtemp()) / "calls.log"
    clog(output=str(log), events=["ALL"]).register_with_comm(comm)
    recorder = FlightRecorderHook(max_entries=100, isolated=True)
    recorder.register_with_comm(comm)

    for step in range(3):
        comm.all_reduce(torch.ones(1024, device=device), torchcomms.ReduceOp.SUM, async_op=False)
        comm.broadcast(torch.ones(step + 1, device=device), root=0, async_op=False)
    counting.remove()
    comm.barrier(async_op=False)

    if rank == 0:
        print(f"calls: {dict(calls)}")
        print("signatures:")
        print("\n".join(line for line in log.read_text().splitlines() if "|sig|" in line))
        entries = json.loads(recorder.dump_json())["entries"]
        print(f"recorded: {[entry['profiling_name'] for entry in entries]}")
    comm.finalize()


if __name__ == "__main__":
    main()
