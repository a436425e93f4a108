"""``python -m mscclpp --include`` tells where the device headers are."""

from __future__ import annotations

import argparse

from mscclpp import __version__, include_path


def main() -> None:
    """Prints what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m mscclpp", description="Where things of mscclpp are.")
    parser.add_argument(
        "--include", action="store_true", help="the folder with the device headers, for nvcc -I"
    )
    parser.add_argument("--version", action="version", version=__version__)
    arguments = parser.parse_args()
    if not arguments.include:
        parser.error("nothing was asked for: --include or --version")
    print(include_path())


if __name__ == "__main__":
    main()
