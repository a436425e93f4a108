"""Trains with replicas that are killed and started again, and draws the loss over time.

    python examples/python/loss_with_kills.py                        30 s, writes loss.svg
    python examples/python/loss_with_kills.py --seconds 60 --output picture.svg

Every few seconds a replica gets a kill -9, and another one is started. Marks in the picture show both. The replicas print their
losses; this program reads them and draws. Needs torch.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import time

REPLICAS = 3
START_SECONDS = 300


def replica(address: str, name: str) -> None:
    """Trains a small network to imitate another one."""
    import ringfold.torch.elastic as elastic
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(20_000, 32)
    teacher = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    labels = teacher(inputs).argmax(1)
    data = TensorDataset(inputs, labels)
    run = elastic.join(address, name=name)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    model = DistributedDataParallel(model, process_group=run.replica_group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    sampler = elastic.Sampler(data, run)
    run.replicate(model, optimizer, sampler=sampler)
    for step, (batch, expected) in run.batches(DataLoader(data, batch_size=32, sampler=sampler)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), expected)
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print("loss", time.monotonic(), loss.item(), run.world_size, flush=True)
    run.leave()


class Picture:
    """Losses and events over time, as SVG."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.losses: list[tuple[float, float]] = []
        self.events: list[tuple[float, str]] = []

    def read(self, process: subprocess.Popen[str]) -> None:
        """Reads what a replica prints. Its first loss is the end of its join."""
        assert process.stdout is not None
        has_joined = False
        for line in process.stdout:
            if line.startswith("loss "):
                _, moment, loss, world = line.split()
                self.losses.append((float(moment) - self.began, float(loss)))
                if not has_joined:
                    self.mark(f"joined: {world}")
                has_joined = True

    def mark(self, text: str) -> None:
        """Something happens now."""
        self.events.append((time.monotonic() - self.began, text))
        print(f"{self.events[-1][0]:5.1f} s  {text}", flush=True)

    def await_joins(self, number: int) -> None:
        """Waits until so many replicas have joined."""
        patience = time.monotonic() + START_SECONDS
        while (joined := sum(text.startswith("joined") for _, text in self.events)) < number:
            if time.monotonic() > patience:
                sys.exit(f"{joined} of {number} replicas have joined in {START_SECONDS} s")
            time.sleep(0.1)

    def svg(self) -> str:
        """The picture: the mean of the losses in each of 200 intervals."""
        width, height, left, top = 900, 320, 60, 70
        begin = min(moment for moment, _ in self.losses)
        self.losses = [(moment - begin, loss) for moment, loss in self.losses]
        events = [(max(0.0, moment - begin), text) for moment, text in self.events]
        end = max(moment for moment, _ in self.losses)
        high = max(loss for _, loss in self.losses)
        means: dict[int, list[float]] = {}
        for moment, loss in self.losses:
            means.setdefault(int(200 * moment / end), []).append(loss)

        def place(moment: float, loss: float) -> str:
            return f"{left + width * moment / end:.1f},{top + height * (1 - loss / high):.1f}"

        line = " ".join(place(n * end / 200, sum(each) / len(each)) for n, each in sorted(means.items()))
        parts = [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 460" font-family="sans-serif" font-size="13">',
            '<rect width="1000" height="460" fill="white"/>',
            '<text x="60" y="24" font-size="16">Loss while replicas are killed and join</text>',
        ]
        for moment, text in events:
            x = left + width * min(1.0, moment / end)
            is_kill = text.startswith("kill")
            colour, y = ("#c0392b", top - 8) if is_kill else ("#27ae60", top + height + 44)
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}" stroke="{colour}"/>'
            )
            parts.append(f'<text x="{x:.1f}" y="{y}" fill="{colour}" font-size="11">{text}</text>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="#2c3e50" stroke-width="2"/>')
        for tenth in range(0, 11, 2):
            moment = end * tenth / 10
            x, y = place(moment, 0).split(",")
            parts.append(f'<text x="{x}" y="{float(y) + 20}" text-anchor="middle">{moment:.0f} s</text>')
            loss = high * tenth / 10
            y = place(0, loss).split(",")[1]
            parts.append(f'<text x="{left - 8}" y="{float(y) + 4}" text-anchor="end">{loss:.1f}</text>')
            parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Starts replicas, kills some, and draws."""
    import pccl

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long to train (default: %(default)s)"
    )
    parser.add_argument(
        "--kill-every", type=float, default=5.0, help="seconds between kills (default: %(default)s)"
    )
    parser.add_argument("--output", default="loss.svg", help="the file of the picture (default: %(default)s)")
    arguments = parser.parse_args()
    picture = Picture()
    processes: list[subprocess.Popen[str]] = []
    with pccl.MasterNode("127.0.0.1:0") as master:

        def start(name: str) -> None:
            words = [sys.executable, __file__, "--replica", master.address, name]
            processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            threading.Thread(target=picture.read, args=[processes[-1]], daemon=True).start()

        try:
            for number in range(REPLICAS):
                start(f"replica-{number}")
            picture.await_joins(REPLICAS)
            end = time.monotonic() + arguments.seconds
            number = REPLICAS
            while time.monotonic() + arguments.kill_every < end:
                time.sleep(arguments.kill_every)
                picture.await_joins(number)
                processes[number - REPLICAS].send_signal(signal.SIGKILL)
                picture.mark("kill -9")
                start(f"replica-{number}")
                number += 1
            picture.await_joins(number)
            time.sleep(max(0.0, end - time.monotonic()))
        finally:
            for process in processes:
                process.kill()
                process.wait()
    with open(arguments.output, "w") as file:
        file.write(picture.svg())
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--replica"]:
        replica(*sys.argv[2:])
    else:
        main()
