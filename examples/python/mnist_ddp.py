"""Data-parallel training that peers may join and leave at any time: MNIST, or Fashion-MNIST in its place.

Start a master (`pccl_master`), then this program twice or more. Start or kill peers while it runs:

    python examples/python/mnist_ddp.py

The shared state is the model and Adam's moments and step counts, so a late peer continues exactly where the
others are. All peers end with the same bits, and print the accuracy and a fingerprint of the model.
"""

import argparse
import gzip
import hashlib
import sys
import time
from pathlib import Path

import pccl
import torch
from torch import nn

FOLDERS = (
    Path("data/MNIST/raw"),
    Path.home() / ".cache/ringfold/data/MNIST/raw",
    Path("/usr/share/datasets/fashion-mnist"),
)


def main() -> int:
    options = arguments()
    torch.set_num_threads(options.threads)
    images, labels = load(options.data, "train")
    model = nn.Sequential(nn.Linear(28 * 28, 128), nn.ReLU(), nn.Linear(128, 10)).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    buffer = gradients_and_loss(model)
    state = shared_state(model, optimizer)

    with pccl.Communicator(options.master) as comm:
        comm.connect(n_attempts=15)
        print(f"connected to {options.master} as {comm.name}, {buffer.numel() - 1} parameters")
        is_newcomer = True
        while state.revision < options.steps:
            began = time.monotonic()
            if not wait_for_peer(comm, is_newcomer, options.timeout):
                print(f"no other peer joined within {options.timeout:g} s", file=sys.stderr)
                return 3
            received = comm.sync_shared_state(state).rx_bytes
            if is_newcomer:
                print(f"joined {comm.world_size} peers at step {state.revision}, received {received} bytes")
            elif received:
                print(f"the state of this peer had drifted: {received} bytes received", file=sys.stderr)
                return 1
            is_newcomer = False

            # Peers have no ranks, so each peer draws its own examples.
            drawn = torch.randint(len(images), (options.batch,))
            x, y = images[drawn].to(options.device), labels[drawn].to(options.device)
            buffer.zero_()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            buffer[-1] = loss.detach()
            # The average is over examples, not over peers: a peer with a larger batch has more weight.
            if not average(comm, buffer, options.batch):
                continue  # No other peer is left. Wait for new peers, then repeat this step.
            optimizer.step()
            state.revision += 1

            if state.revision % options.report == 0 or state.revision in (1, options.steps):
                done = f"step {state.revision}/{options.steps}"
                print(f"{done}: loss {buffer[-1].item():.4f}, {comm.world_size} peers")
            time.sleep(max(0.0, began + options.pace - time.monotonic()))
    print(f"accuracy {accuracy(model, options):.2f} %, model {fingerprint(model)}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Elastic data-parallel training; start two peers or more.")
    parser.add_argument(
        "--master", default="127.0.0.1:48148", metavar="HOST:PORT", help="default: %(default)s"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help=f"folder of the four files, plain or .gz (first of {', '.join(map(str, FOLDERS))})",
    )
    parser.add_argument(
        "--steps", type=int, default=500, help="steps of the run, not of this peer (%(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=128, help="examples per step; peers may differ (%(default)s)"
    )
    parser.add_argument(
        "--pace", type=float, default=0.0, help="minimum seconds per step, to watch it (%(default)s)"
    )
    parser.add_argument("--report", type=int, default=25, help="steps between progress lines (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for another peer (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads (%(default)s)")
    parser.add_argument(
        "--device", default="cuda" if pccl.cuda.is_available() else "cpu", help="default: %(default)s"
    )
    options = parser.parse_args()
    if options.data is None:
        options.data = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if options.data is None or not options.data.is_dir():
        parser.error("no data: give --data DIR, or install Debian's dataset-fashion-mnist")
    return options


def load(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as floats in 0..1, one row each, and labels; `part` is train or t10k."""

    def items(name: str, header: int) -> torch.Tensor:
        path = folder / f"{part}-{name}"
        packed = path.with_name(path.name + ".gz")
        content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
        return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8)

    images = items("images-idx3-ubyte", 16).reshape(-1, 28 * 28).float() / 255
    return images, items("labels-idx1-ubyte", 8).long()


def gradients_and_loss(model: nn.Module) -> torch.Tensor:
    """One tensor for all gradients and the loss, for one reduce; each .grad is a view of it."""
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    buffer = torch.zeros(sum(sizes) + 1, device=parameters[0].device)
    for parameter, view in zip(parameters, buffer[:-1].split(sizes)):
        parameter.grad = view.view_as(parameter)
    return buffer


def shared_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> pccl.SharedState:
    """The parameters and the optimizer's state."""
    optimizer.step()  # With gradients of zero: changes no parameter, but makes Adam's state.
    entries = []
    for name, parameter in model.named_parameters():
        entries.append(pccl.TensorInfo.from_torch(parameter, name))
        for key, tensor in optimizer.state[parameter].items():
            entries.append(pccl.TensorInfo.from_torch(tensor, f"{name}.{key}"))
    return pccl.SharedState(entries)


def wait_for_peer(comm: pccl.Communicator, is_newcomer: bool, timeout: float) -> bool:
    """Admits waiting peers until there are two peers. Returns False if that takes too long."""
    deadline = time.monotonic() + timeout
    # A new peer was admitted by the others' update_topology, and continues with them.
    while not is_newcomer or comm.world_size < 2:
        is_newcomer = False
        try:
            comm.update_topology()
        except pccl.PCCLError as error:
            if not error.is_retryable:
                raise
            print(f"{error}; retrying")
            continue
        if comm.world_size >= 2:
            break
        if time.monotonic() > deadline:
            return False
        print("alone, waiting for another peer")
        time.sleep(0.5)
    return True


def average(comm: pccl.Communicator, tensor: torch.Tensor, weight: float) -> bool:
    """Averages over all peers in place; retries when a peer is lost. Returns False if no other peer is left."""
    while comm.world_size >= 2:
        try:
            comm.all_reduce(tensor, tensor, op=pccl.ReduceOp.AVG, weight=weight)
            return True
        except pccl.PCCLError as error:
            # After a failure the tensor is restored, so it can be reduced again.
            if not error.is_retryable:
                raise
            print(f"{error}; retrying")
    return False


@torch.no_grad()
def accuracy(model: nn.Module, options: argparse.Namespace) -> float:
    """The percentage of test images that the model classifies correctly."""
    images, labels = load(options.data, "t10k")
    guesses = model(images.to(options.device)).argmax(dim=1).cpu()
    return 100 * float((guesses == labels).float().mean())


def fingerprint(model: nn.Module) -> str:
    """Equal for equal bits."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except pccl.PCCLError as error:
        sys.exit(f"mnist_ddp: {error}")
