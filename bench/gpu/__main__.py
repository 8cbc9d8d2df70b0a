"""Every GPU kernel against float64, against what this GPU can do, and against other people's.

    python bench/gpu [--seconds 420] [--json FILE]      on a GPU, at most 8 minutes
    TRITON_INTERPRET=1 python bench/gpu --tiny          checks alone, in Triton's interpreter

First two ceilings are measured: bytes per second of a copy on the device, and FLOP/s of a bfloat16
matrix product. Then each kernel is checked and timed, peers beside it, and last, while time is
left, other tiles are tried for attention.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from cases import FULL, TINY, Case, all_cases, relative_error
from other_attention import others
from rich.console import Console
from rich.table import Table
from sweep import sweep

from octavo.kernels.gpu.kv_tile import FP8
from octavo.kernels.gpu.launch import INTERPRETED

# Of the worst row. Inputs are exact, so this is the kernel's own rounding; fp8 keeps three bits.
MAX_ERROR = {torch.bfloat16: 2e-2, FP8: 8e-2}
SHARE_OF_CHECKS = 0.6  # of the time; the sweep gets the rest


def time_ms(run: Callable[[], object]) -> float:
    """Median time on the device, its cache emptied before each call."""
    from triton.testing import do_bench

    return float(do_bench(run, warmup=10, rep=40, return_mode="median"))


def measure_ceilings(device: torch.device) -> dict[str, float]:
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / time_ms(lambda: target.copy_(source)) / 1e6
    a, b = torch.randn(2, 8192, 8192, device=device).bfloat16()
    return {"copy_gb_s": copied, "matmul_tflop_s": 2 * 8192**3 / time_ms(lambda: a @ b) / 1e9}


def check(case: Case) -> dict[str, Any]:
    actual = case.run()
    error = relative_error(actual, case.exact())
    is_right = error <= MAX_ERROR[actual.dtype]
    return {"kernel": case.kernel, "shape": case.shape, "error": error, "is_right": is_right}


def time_case(case: Case, ceilings: dict[str, float]) -> dict[str, Any]:
    ms = time_ms(case.run)
    gb_s, tflop_s = case.num_bytes / ms / 1e6, case.num_flop / ms / 1e9
    roof_ms = max(
        case.num_bytes / ceilings["copy_gb_s"] / 1e6,
        case.num_flop / ceilings["matmul_tflop_s"] / 1e9,
    )
    peers: dict[str, float | str] = {name: time_ms(run) for name, run in case.peers.items()}
    for name, build in others(case).items():
        try:
            peers[name] = time_ms(build())
        except Exception as error:  # another package's trouble must not end this run
            peers[name] = f"{type(error).__name__}: {str(error)[:80]}"
    return {
        "ms": ms,
        "gb_s": gb_s,
        "tflop_s": tflop_s,
        "share_of_ceiling": roof_ms / ms,
        "peers_ms": peers,
    }


def sweep_cases(device: torch.device, deadline: float) -> list[dict[str, Any]]:
    """The time left is shared among the cases; a tile is compiled for the first that tries it."""
    found: list[dict[str, Any]] = []
    left = 2 * (len(FULL.decodes) + len(FULL.prefills))
    for case in all_cases(FULL, torch.bfloat16, device):
        now = monotonic()
        if case.call is None or now > deadline:
            continue
        ways = sweep(case, time_ms, now + (deadline - now) / max(left, 1))
        left -= 1
        default = next((ms for ms, way in ways if way.is_default), None)
        best = [{"tile": way.name, "ms": ms} for ms, way in ways[:3]]
        found.append(
            {"kernel": case.kernel, "shape": case.shape, "tried": len(ways), "best": best}
            | {"default_ms": default}
        )
    return found


def print_rows(rows: list[dict[str, Any]], ceilings: dict[str, float]) -> None:
    table = Table(title=", ".join(f"{name} {value:,.0f}" for name, value in ceilings.items()))
    for name in ("kernel", "shape", "error", "ms", "GB/s", "TFLOP/s", "of ceiling", "peers, ms"):
        table.add_column(name, no_wrap=name != "peers, ms")
    for row in rows:
        timed = "ms" in row
        peers = ", ".join(
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.get("peers_ms", {}).items()
        )
        table.add_row(
            row["kernel"], row["shape"], f"{row['error']:.1e}",
            *([f"{row['ms']:.3f}", f"{row['gb_s']:,.0f}", f"{row['tflop_s']:,.0f}",
               f"{row['share_of_ceiling']:.0%}", peers] if timed else []),
            style=None if row["is_right"] else "red",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def print_sweep(sweeps: list[dict[str, Any]]) -> None:
    for entry in sweeps:
        default = entry["default_ms"]
        print(f"{entry['kernel']} {entry['shape']}: {entry['tried']} ways tried")
        for way in entry["best"]:
            gain = f", {default / way['ms']:.2f} x the default" if default else ""
            print(f"    {way['ms']:.3f} ms  {way['tile']}{gain}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python bench/gpu", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=420.0, help="in all; default: 420")
    parser.add_argument("--tiny", action="store_true", help="checks of small shapes, no times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    arguments = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    if not has_gpu and not (arguments.tiny and INTERPRETED):
        print("No GPU here: nothing was measured. Checks alone: TRITON_INTERPRET=1 --tiny.")
        return 2
    begin = monotonic()
    device = torch.device("cuda" if has_gpu else "cpu")
    torch.manual_seed(0)
    ceilings = {} if arguments.tiny else measure_ceilings(device)
    rows, skipped = [], 0
    for case in all_cases(TINY if arguments.tiny else FULL, torch.bfloat16, device):
        if not arguments.tiny and monotonic() - begin > SHARE_OF_CHECKS * arguments.seconds:
            skipped += 1
            continue
        row = check(case)
        rows.append(row if arguments.tiny else row | time_case(case, ceilings))
    print_rows(rows, ceilings)
    sweeps = [] if arguments.tiny else sweep_cases(device, begin + arguments.seconds)
    print_sweep(sweeps)
    name = torch.cuda.get_device_name(device) if has_gpu else "Triton's interpreter"
    wrong = [row for row in rows if not row["is_right"]]
    print(f"{name}: {len(rows)} cases, {len(wrong)} wrong, {skipped} left out for time")
    if arguments.json is not None:
        result = {"device": name, "ceilings": ceilings, "cases": rows, "sweeps": sweeps}
        arguments.json.write_text(json.dumps(result, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
