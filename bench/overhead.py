"""What the HTTP server of a master and flight recorders cost: all-reduces with and without them.

    python bench/overhead.py                                       # 4 B and 256 MiB, 2 ranks of an elastic run
    python bench/overhead.py --program target/release/ringfold --rounds 7 --page --json figures.json
    python bench/overhead.py --media shm --of recorder             # a group of fixed ranks

Each round runs `ringfold bench` once without both, and once with each. The order changes from round to round, so that other load on
the machine affects all. With HTTP, /metrics is read once a second; with --page, a client also follows /api/events, as an open web page
does. Recorders are on for all processes. The time of a round is the median that `ringfold bench` reports; the table has the medians of
all rounds. Times of processes that were started again differ by several percent: many short rounds tell more than a few long ones.

The master, the ranks and the reader are on one machine: of few cores, the reader takes part of them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

TIMEOUT = 600.0


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--program", default="ringfold", help="the command ringfold [default: that of PATH]")
    words.add_argument("--sizes", default="4B,256MiB")
    words.add_argument("--world", type=int, default=2)
    words.add_argument("--rounds", type=int, default=5, help="at least 2")
    words.add_argument("--time-ms", type=int, default=5000, help="of each size, in each run")
    words.add_argument("--media", choices=["elastic", "shm", "tcp"], default="elastic")
    words.add_argument("--of", default="http,recorder", help="what to measure [default: http,recorder]")
    words.add_argument("--page", action="store_true", help="with HTTP, also follow /api/events")
    words.add_argument("--json", type=Path, help="write the figures to this file")
    options = words.parse_args()
    parts = options.of.split(",")
    if not set(parts) <= {"http", "recorder"} or ("http" in parts and options.media != "elastic"):
        words.error("--of: http, recorder, or both; http needs --media elastic")

    times: dict[tuple[str, int], list[float]] = {}
    scrapes: list[float] = []
    for index in range(options.rounds):
        variants = ["", *parts]
        for variant in variants[index % len(variants) :] + variants[: index % len(variants)]:
            reader = Reader(free_port(), options.page) if variant == "http" else None
            for size, microseconds in measure(options, variant, reader).items():
                times.setdefault((variant, size), []).append(microseconds)
            scrapes += reader.times if reader else []
        print(f"round {index + 1} of {options.rounds}", file=sys.stderr)
    if "http" in parts and not scrapes:
        print("overhead: nothing was read: choose a longer --time-ms", file=sys.stderr)
        return 1

    rows = []
    print(
        "| bytes | with | without, µs (min – max) | with, µs (min – max) | ratio of a round, median (quartiles) |\n|---:|---|---:|---:|---:|"
    )
    for size in sorted({size for _, size in times}):
        for part in parts:
            off, on = times["", size], times[part, size]
            # Of the runs of each round, which are close in time.
            ratios = [with_it / without for with_it, without in zip(on, off, strict=True)]
            low, ratio, high = statistics.quantiles(ratios, n=4)
            rows.append({"bytes": size, "with": part, "without_us": off, "with_us": on, "ratio": ratio})
            print(
                f"| {size} | {part} | {spread(off)} | {spread(on)} | {ratio:.3f} ({low:.3f} – {high:.3f}) |"
            )
    if scrapes:
        slowest, usual = 1e3 * max(scrapes), 1e3 * statistics.median(scrapes)
        print(f"\n{len(scrapes)} scrapes: median {usual:.1f} ms, slowest {slowest:.1f} ms")
    if options.json:
        figures = {"points": rows, "scrape_s": scrapes, "page": options.page, "world": options.world}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} – {max(values):.2f})"


def measure(options: argparse.Namespace, variant: str, reader: Reader | None) -> dict[int, float]:
    """One run. Returns the time of a call in microseconds, by the size."""
    words = [options.program, "bench", "--media", options.media, "--sizes", options.sizes, "--json", "-"]
    words += ["--world", str(options.world), "--time-ms", str(options.time_ms)]
    hidden = ("RINGFOLD_HTTP", "RINGFOLD_FLIGHT_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    with tempfile.TemporaryDirectory() as flights:
        if variant == "recorder":
            environment["RINGFOLD_FLIGHT_DIR"] = flights
        if reader:
            environment["RINGFOLD_HTTP"] = f"127.0.0.1:{reader.port}"
            reader.start()
        try:
            done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, timeout=TIMEOUT, check=True)
        finally:
            if reader:
                reader.stop()
        if variant == "recorder" and not any(Path(flights).glob("*.flight")):
            raise RuntimeError("nothing was recorded")
    report: dict[str, Any] = json.loads(done.stdout)
    return {point["bytes"]: point["results"][0]["median_us"] for point in report["points"]}


class Reader:
    """Reads /metrics once a second while a master listens on the port; with ``page`` it follows /api/events, too."""

    def __init__(self, port: int, page: bool) -> None:
        self.port = port
        self.times: list[float] = []
        self._is_over = threading.Event()
        targets = [self._scrape, *([self._follow] if page else [])]
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(10)

    def _scrape(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        while not self._is_over.is_set():
            begun = time.monotonic()
            try:
                connection.request("GET", "/metrics")
                text = connection.getresponse().read()
                assert b"ringfold_build_info" in text
                self.times.append(time.monotonic() - begun)
            except (OSError, http.client.HTTPException):
                # The master has not started yet, or has ended.
                connection.close()
            self._is_over.wait(max(0.0, begun + 1 - time.monotonic()))

    def _follow(self) -> None:
        while not self._is_over.wait(0.2):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/api/events")
                answer = connection.getresponse()
                while not self._is_over.is_set() and answer.readline():
                    pass
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
