"""A rank of the matrix: goes through all chapters, and leaves what it has found in a file.

torchrun --standalone --nproc-per-node 3 matrix.py FOLDER
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from pathlib import Path

from matrix_chapters import CHAPTERS, new_comm
from matrix_report import Chapter, Report

# A rank that hangs prints its stack before the test times out.
HANG_S = 150


def main() -> None:
    """Runs the chapters that are named after the folder, or all."""
    folder, *names = sys.argv[1:]
    rank = int(os.environ["RANK"])
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    results: dict[str, dict[str, object]] = {}
    for chapter in CHAPTERS:
        if names and chapter.__name__ not in names:
            continue
        results[chapter.__name__] = outcome(chapter, rank)
        Path(folder, f"rank{rank}.json").write_text(json.dumps(results, indent=1))
    faulthandler.cancel_dump_traceback_later()


def outcome(chapter: Chapter, rank: int) -> dict[str, object]:
    """What a chapter has found."""
    report = Report(rank)
    begin = time.monotonic()
    try:
        comm = new_comm(chapter.__name__)
        try:
            chapter(comm, report)
        finally:
            comm.finalize()
    except Exception:
        report.problems.append(f"rank {rank}: {traceback.format_exc()}")
    return {"problems": report.problems, "checks": report.checks, "seconds": time.monotonic() - begin}


if __name__ == "__main__":
    main()
