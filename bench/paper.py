"""The PagedAttention paper's tables (SOSP'23), its figures beside ours.

    python bench/paper.py [--json FILE] [--plot FILE]

Slots, concurrency and sharing are facts of the allocator: the engine's scheduler and pool run the
lengths without a model. Kernel times are of the CPU kernels on one thread; the paper's are of an
A100. Swap is between the pool and other memory of the same CPU, as the engine does it.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.progress import Progress

from figures import Figure, figure_of, print_figures
from octavo import LLM
from octavo.kernels.cpu import ops
from paper_allocator import (
    WORKLOADS,
    Use,
    draw_lengths,
    exact_slots,
    longest_slots,
    paged,
    power_of_two_slots,
    reserved,
)
from paper_kernels import attention, preemption
from paper_report import draw, show
from paper_sharing import saved_by_beams, saved_by_samples
from report import machine

BLOCK_SIZES = [8, 16, 32, 64, 128]
KERNEL_SHAPES = [(8, 64), (8, 128), (8, 256), (32, 64), (32, 128), (32, 256)]  # as Figure 18a
NUM_SAMPLES = [2, 4, 6]  # samples or beams, as Figure 15
SHARED_PART = 8  # of the requests one eighth, each with several samples
Figures = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--draws", type=int, default=3, help="of lengths, for the judged figures")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="what is computed again")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--searches", type=int, default=8, help="prompts of the beam searches")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, default=Path("bench/results/paper.png"))
    return parser.parse_args()


def measure(args: argparse.Namespace, progress: Progress) -> Figures:
    total = 3 * len(WORKLOADS) + args.draws + len(KERNEL_SHAPES) + len(BLOCK_SIZES) + 1
    task = progress.add_task("", total=total)

    def begin(what: str) -> None:
        progress.update(task, description=what, advance=1)

    figures: Figures = {"policies": {}, "block sizes": {}, "kernel": [], "kernel by block": {}}
    figures["samples"], figures["beams"] = {}, {}
    for workload in WORKLOADS:
        begin(f"slots, {workload}")
        lengths = draw_lengths(workload, args.requests, args.seed)
        by_size = {size: paged(lengths, size) for size in BLOCK_SIZES}
        figures["block sizes"][workload] = by_size
        figures["policies"][workload] = {
            "paged, block 16": by_size[16],
            "exact": reserved(lengths, exact_slots),
            "power of two": reserved(lengths, power_of_two_slots),
            "longest": reserved(lengths, longest_slots),
        }
        begin(f"samples of one prompt, {workload}")
        few = lengths[: len(lengths) // SHARED_PART]
        figures["samples"][workload] = {n: saved_by_samples(few, n) for n in NUM_SAMPLES}
    figures["draws"] = []
    for draw_index in range(args.draws):
        begin(f"slots, draw {draw_index}")
        lengths = draw_lengths("ShareGPT-like", args.requests, args.seed + draw_index)
        uses = paged(lengths, 16), reserved(lengths, longest_slots)
        figures["draws"].append(dict(zip(("paged", "longest"), uses, strict=True)))
    torch.set_num_threads(1)
    dtype: torch.dtype = getattr(torch, args.dtype)
    ops.warm_up(dtype)
    with torch.inference_mode():
        for rows, context in KERNEL_SHAPES:
            begin(f"attention, {rows} rows, {context} tokens")
            times = attention(rows, context, 16, dtype)
            figures["kernel"].append({"rows": rows, "context": context} | times)
        for size in BLOCK_SIZES:
            begin(f"attention, block size {size}")
            figures["kernel by block"][size] = attention(32, 256, size, dtype)
    begin("recompute and swap")
    figures["preemption"] = preemption(args.model, BLOCK_SIZES)
    llm = LLM(args.model, dtype=args.dtype, device="cpu", kv_cache_bytes=1 << 30)
    for workload in WORKLOADS:
        begin(f"beams, {workload}")
        few = draw_lengths(workload, args.requests, args.seed)[: args.searches]
        figures["beams"][workload] = {n: saved_by_beams(llm, few, n) for n in NUM_SAMPLES}
    return figures


def judged(figures: Figures) -> list[Figure]:
    """What has a floor: slots in use, and requests at once over reserving the longest output."""
    paged_uses = [one["paged"] for one in figures["draws"]]
    longest = [one["longest"] for one in figures["draws"]]
    ratios = [a.concurrency / b.concurrency for a, b in zip(paged_uses, longest, strict=True)]
    detail = f"{paged_uses[0].concurrency:.1f} / {longest[0].concurrency:.1f} requests at once"
    return [
        figure_of("slots", [100 * use.utilisation for use in paged_uses], "ShareGPT-like lengths"),
        figure_of("concurrency", ratios, detail),
    ]


def as_json(value: object) -> object:
    return (
        {name: getattr(value, name) for name in value.__slots__}
        if isinstance(value, Use)
        else value
    )


def main() -> None:
    args = parse_arguments()
    with Progress() as progress:
        figures = measure(args, progress)
    show(figures)
    verdicts = judged(figures)
    print_figures(f"judged, one draw of lengths a round, {machine()}", verdicts)
    draw(args.plot, figures, f"{args.dtype}, one thread, {machine()}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        content = figures | {
            "machine": machine(),
            "command": " ".join(["python", *sys.argv]),
            "figures": [asdict(verdict) for verdict in verdicts],
        }
        args.json.write_text(json.dumps(content, default=as_json, indent=1) + "\n")
        print(f"figures: {args.json}")


if __name__ == "__main__":
    main()
