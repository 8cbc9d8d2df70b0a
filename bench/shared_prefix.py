"""Decode attention over a shared prefix: the plain CPU kernel beside the grouped one.

    python bench/shared_prefix.py [--shared 0,1024,2048] [--sweep] [--plot FILE] [--json FILE]

SmolLM2-135M's shapes, one thread, ms per layer; "engine" is what a step runs: groups are looked for
(once for 30 layers) and used where the policy says so. Variants take turns within each round; the
best round counts, in CPU time of this thread. --sweep shows where grouping begins to pay.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from figures import Figure, Result, finish, ratio_of
from kernels_cpu import BLOCK, HEAD_DIM, HEADS, KV_HEADS, LAYERS, measure
from octavo.engine.shared_prefixes import GroupPolicy, find_groups, pack_groups, policy_for
from octavo.kernels.cpu import ops
from report import machine

SCALE = HEAD_DIM**-0.5
ALWAYS = GroupPolicy()
GOAL_SEQUENCES, GOAL_TOKENS = 32, 2048
SWEEP_MEMBERS, SWEEP_TOKENS = (2, 3, 4, 8, 16), (16, 32, 64, 128, 512, 1024)
Variants = dict[str, Callable[[int], torch.Tensor]]


def make_variants(rows: int, shared: int, private: int, dtype: torch.dtype) -> Variants:
    """Plain, always grouped where anything is shared, and as the engine decides."""
    num_shared, num_own = shared // BLOCK, -(-private // BLOCK)
    num_blocks = num_shared + rows * num_own
    kv = torch.randn(num_blocks, LAYERS, 2, KV_HEADS, BLOCK, HEAD_DIM).to(dtype)
    order = torch.randperm(num_blocks).int()
    own = order[num_shared:].view(rows, num_own)
    tables = torch.cat([order[:num_shared].expand(rows, -1), own], dim=1).contiguous()
    lengths = torch.full((rows,), shared + private, dtype=torch.int32)
    query = torch.randn(rows, HEADS, HEAD_DIM).to(dtype)

    def search(policy: GroupPolicy) -> list[object]:
        seq_lens = lengths.numpy().astype(np.int64)
        groups = find_groups(tables.numpy(), seq_lens, BLOCK, policy)
        return [pack_groups(groups, rows, BLOCK, kv.device)] if groups else []

    def plain(layer: int) -> torch.Tensor:
        return ops.decode_attention(query, kv[:, layer], tables, lengths, SCALE)

    def grouped(groups: list[object], layer: int) -> torch.Tensor:
        if not groups:
            return plain(layer)
        return ops.grouped_decode_attention(query, kv[:, layer], tables, lengths, groups[0], SCALE)

    always = search(ALWAYS)
    decided: list[list[object]] = [[]]

    def engine(layer: int) -> torch.Tensor:
        if layer == 0:
            decided[0] = search(policy_for(kv.device, dtype, HEADS // KV_HEADS))
        return grouped(decided[0], layer)

    return {"plain": plain, "grouped": lambda layer: grouped(always, layer), "engine": engine}


def print_table(title: str, times: dict[int, dict[str, float]]) -> None:
    table = Table(title=title)
    for heading in ("shared tokens", "plain", "grouped", "engine", "plain / engine"):
        table.add_column(heading, justify="right")
    for shared, ms in times.items():
        cells = [f"{ms[name]:.3f}" for name in ("plain", "grouped", "engine")]
        table.add_row(f"{shared:,}", *cells, f"{ms['plain'] / ms['engine']:.2f}")
    Console().print(table)


def print_sweep(title: str, ratios: dict[int, dict[int, float]]) -> None:
    table = Table(title=title)
    table.add_column("members \\ tokens", justify="right")
    for tokens in SWEEP_TOKENS:
        table.add_column(str(tokens), justify="right")
    for members, by_tokens in ratios.items():
        table.add_row(str(members), *(f"{ratio:.2f}" for ratio in by_tokens.values()))
    Console().print(table)


def draw(path: Path, title: str, times: dict[int, dict[str, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4))
    for name in ("plain", "engine"):
        axis.plot(list(times), [ms[name] for ms in times.values()], marker="o", label=name)
    axis.set(title=title, xlabel="shared tokens", ylabel="ms per layer")
    axis.set_ylim(bottom=0)
    axis.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def sweep(private: int, dtype: torch.dtype) -> dict[int, dict[int, float]]:
    """Plain over grouped, by members and shared tokens."""
    ratios: dict[int, dict[int, float]] = {}
    for members in track(SWEEP_MEMBERS, description="sweep"):
        for shared in SWEEP_TOKENS:
            variants = make_variants(members, shared, private, dtype)
            ms = measure({name: variants[name] for name in ("plain", "grouped")})
            ratios.setdefault(members, {})[shared] = ms["plain"] / ms["grouped"]
    return ratios


def measure_rounds(
    options: argparse.Namespace, shared: int, dtype: torch.dtype
) -> list[dict[str, float]]:
    variants = make_variants(options.sequences, shared, options.private, dtype)
    return [measure(variants) for _ in range(options.rounds)]


def goal_figures(sequences: int, by_round: dict[int, list[dict[str, float]]]) -> list[Figure]:
    """Plain over what the engine runs, where the goal asks for it."""
    if sequences != GOAL_SEQUENCES or GOAL_TOKENS not in by_round:
        return []
    rounds = by_round[GOAL_TOKENS]
    plain, engine = ([row[name] for row in rounds] for name in ("plain", "engine"))
    return [ratio_of("shared-attention", plain, engine, "ms a layer")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--shared", default="0,1024,2048", help="tokens, multiples of 16")
    parser.add_argument("--private", type=int, default=64, help="tokens of each sequence's own")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweep", action="store_true", help="small groups, plain over grouped")
    parser.add_argument("--json", type=Path, help="write all times here")
    parser.add_argument("--plot", type=Path, help="draw plain and engine here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtype: torch.dtype = getattr(torch, options.dtype)
    ops.warm_up(dtype)
    title = (
        f"decode attention, ms per layer, {options.sequences} sequences with {options.private}"
        f" private tokens, {options.dtype}, one core of {machine()}"
    )
    with torch.inference_mode():
        by_round = {
            shared: measure_rounds(options, shared, dtype)
            for shared in track([int(n) for n in options.shared.split(",")], description="shared")
        }
        ratios = sweep(options.private, dtype) if options.sweep else {}
    times = {
        shared: {name: min(row[name] for row in rows) for name in rows[0]}
        for shared, rows in by_round.items()
    }
    print_table(title, times)
    if ratios:
        print_sweep("plain over grouped, all sequences of the batch in one group", ratios)
    rows = [
        {"shared": shared, "round": number} | row
        for shared, measured in by_round.items()
        for number, row in enumerate(measured)
    ]
    finish(Result(title, goal_figures(options.sequences, by_round), rows), None, options.json)
    if options.plot:
        draw(options.plot, title, times)


if __name__ == "__main__":
    main()
