"""Compiles every GPU kernel variant with no GPU present, and prints what its machine code uses.

    python -m octavo.kernels.compile_table [--arch sm_90] [--match REGEX] [--json F] [--plot F]

Exit status 1 when a variant spills registers or needs more shared memory than its GPU has.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.kernels.gpu.binary import MAX_SHARED_BYTES, TARGETS, Binary, compile_for
from octavo.kernels.gpu.launch import INTERPRETED
from octavo.kernels.gpu.tiles import Arch
from octavo.kernels.gpu.variants import variants


@dataclass(frozen=True, slots=True)
class Row:
    """One compiled variant."""

    kernel: str
    dtype: str
    shape: str
    binary: Binary


def compile_variant(arch: Arch, index: int) -> Row:
    """Compile variants(arch)[index]; jit functions do not travel between processes, indices do."""
    variant = variants(arch)[index]
    return Row(variant.kernel, variant.dtype, variant.shape, compile_for(variant.launch, arch))


def compile_all(archs: list[Arch], match: str, num_jobs: int) -> list[Row]:
    """Every matching variant for every architecture, in order, under a progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    work = [
        (arch, index)
        for arch in archs
        for index, variant in enumerate(variants(arch))
        if re.search(match, f"{variant.kernel} {variant.dtype} {variant.shape}")
    ]
    context = multiprocessing.get_context("spawn")
    bar = Progress(console=Console(stderr=True))
    with ProcessPoolExecutor(num_jobs, mp_context=context) as pool, bar as progress:
        task = progress.add_task("compiling", total=len(work))
        futures = [pool.submit(compile_variant, *item) for item in work]
        for future in futures:
            future.add_done_callback(lambda _: progress.advance(task))
        return [future.result() for future in futures]


def print_table(arch: Arch, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    copies = "LDS loads" if arch == "gfx942" else "cp.async"
    table = Table(title=f"{arch} (shared memory up to {MAX_SHARED_BYTES[arch] // 1024} KiB)")
    for name in ("kernel", "dtype", "shape"):
        table.add_column(name, no_wrap=True)
    for name in ("registers", "spills", "shared KiB", "programs/core", "mma", copies):
        table.add_column(name, justify="right")
    for row in rows:
        binary = row.binary
        table.add_row(
            row.kernel, row.dtype, row.shape, str(binary.num_registers), str(binary.num_spilled),
            f"{binary.shared_bytes / 1024:.1f}",
            "" if arch == "gfx942" else str(binary.programs_per_core),
            str(binary.num_mma), str(binary.num_async_copies),
            style="red" if binary.problems else None,
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def write_json(path: Path, rows: list[Row]) -> None:
    path.write_text(
        json.dumps(
            [
                asdict(row)
                | {
                    "problems": row.binary.problems,
                    "programs_per_core": row.binary.programs_per_core,
                }
                for row in rows
            ],
            indent=1,
        )
    )


def draw_plot(path: Path, rows: list[Row]) -> None:
    """Registers against shared memory, one panel an architecture, one colour a kernel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    archs = sorted({row.binary.arch for row in rows})
    kernels = sorted({row.kernel for row in rows})
    figure, panels = pyplot.subplots(1, len(archs), figsize=(5 * len(archs), 4.5), squeeze=False)
    for panel, arch in zip(panels[0], archs, strict=True):
        for number, kernel in enumerate(kernels):
            of_kernel = [r.binary for r in rows if r.kernel == kernel and r.binary.arch == arch]
            panel.scatter(
                [binary.num_registers for binary in of_kernel],
                [binary.shared_bytes / 1024 for binary in of_kernel],
                s=18, alpha=0.7, color=f"C{number}", label=kernel,
            )  # fmt: skip
        panel.axhline(MAX_SHARED_BYTES[arch] / 1024, color="red", linestyle="--", linewidth=1)
        panel.set(title=arch, xlabel="registers per thread", ylabel="shared memory (KiB)")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", action="append", choices=sorted(TARGETS), help="default: all")
    parser.add_argument("--match", default="", metavar="REGEX", help="only these variants, as in"
                        " 'decode_attention bfloat16 D 128'")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw a plot (matplotlib)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    arguments = parser.parse_args()
    if INTERPRETED:
        parser.error("TRITON_INTERPRET is set: the interpreter has no machine code")
    archs: list[Arch] = arguments.arch or list(TARGETS)
    rows = compile_all(archs, arguments.match, arguments.jobs)
    for arch in archs:
        print_table(arch, [row for row in rows if row.binary.arch == arch])
    if arguments.json is not None:
        write_json(arguments.json, rows)
    if arguments.plot is not None:
        draw_plot(arguments.plot, rows)
    bad = [row for row in rows if row.binary.problems]
    for row in bad:
        print(f"{row.binary.arch} {row.kernel} {row.dtype} {row.shape}: {row.binary.problems}")
    print(f"{len(rows)} variants, {len(bad)} with problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
