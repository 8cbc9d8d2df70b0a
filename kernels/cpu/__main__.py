"""`python -m octavo.kernels.cpu [DTYPE ...]`: compile the CPU kernels before anybody waits.

A worker does so by itself at its first start on a machine. Here it is done while an image is built,
or once for the cache that a fleet shares.
"""

import argparse

import torch
from rich.progress import track

from octavo.kernels.cpu.ops import warm_up

DTYPES = ("float32", "bfloat16", "float16")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="octavo.kernels.cpu", description="Compile the CPU kernels into the cache."
    )
    parser.add_argument("dtypes", nargs="*", metavar="DTYPE", help=f"of {', '.join(DTYPES)}; all")
    dtypes = parser.parse_args().dtypes or DTYPES
    if unknown := set(dtypes) - set(DTYPES):
        parser.error(f"DTYPE must be one of {', '.join(DTYPES)}, got {', '.join(sorted(unknown))}")
    for dtype in track(dtypes, "compiling"):
        warm_up(getattr(torch, dtype))


if __name__ == "__main__":
    main()
