"""``python -m mscclpp --include`` prints the folder of the device headers."""

from __future__ import annotations

import argparse

from mscclpp import __version__, include_path


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m mscclpp", description="Prints paths of mscclpp.")
    parser.add_argument(
        "--include", action="store_true", help="print the folder of the device headers, for nvcc -I"
    )
    parser.add_argument("--version", action="version", version=__version__)
    arguments = parser.parse_args()
    if not arguments.include:
        parser.error("missing argument: --include or --version")
    print(include_path())


if __name__ == "__main__":
    main()
