"""CPU kernels against what plain torch offers, on SmolLM2-135M's shapes and one thread.

    python bench/kernels_cpu.py [--context 192] [--dtype bfloat16] [--plot FILE] [--json FILE]

Variants of one operation take turns within each round; the best round counts, in CPU time of this
thread, so that waiting for other processes is left out. Each round walks through 30 layers of
weights and KV, as a model step does, so that no cache holds them all.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from octavo.kernels import reference
from octavo.kernels.cpu import int4_linear, int8_linear, ops

LAYERS, HIDDEN, INTERMEDIATE, VOCABULARY = 30, 576, 1536, 49152
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
BATCHES = (1, 8, 32, 64)
ROUNDS = 5
Variants = dict[str, Callable[[int], object]]
Times = dict[str, dict[str, dict[int, float]]]  # operation -> variant -> rows -> ms a layer


def measure(variants: Variants, calls: int = LAYERS) -> dict[str, float]:
    """Best ms per call of each variant; a variant gets the layer's number."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(ROUNDS):
        for name, run in variants.items():
            begin = time.thread_time()
            for layer in range(calls):
                run(layer)
            best[name] = min(best[name], (time.thread_time() - begin) / calls * 1e3)
    return best


def sdpa_decode(query: torch.Tensor, layer: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Gather all sequences' blocks (equally long here) and call torch's attention once."""
    blocks = layer[tables.long()]  # [S, n, 2, KV_HEADS, BLOCK, HEAD_DIM]
    key, value = blocks.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    return functional.scaled_dot_product_attention(
        query.unsqueeze(2), key, value, scale=HEAD_DIM**-0.5, enable_gqa=True
    )


def decode_variants(rows: int, context: int, dtype: torch.dtype) -> Variants:
    count = -(-context // BLOCK)
    kv = torch.randn(rows * count, LAYERS, 2, KV_HEADS, BLOCK, HEAD_DIM).to(dtype)
    tables = torch.randperm(rows * count).view(rows, count).int()
    lengths = torch.full((rows,), count * BLOCK, dtype=torch.int32)
    query = torch.randn(rows, HEADS, HEAD_DIM).to(dtype)
    scale = HEAD_DIM**-0.5
    return {
        "octavo": lambda i: ops.decode_attention(query, kv[:, i], tables, lengths, scale),
        "torch": lambda i: sdpa_decode(query, kv[:, i], tables),
    }


def prefill_variants(rows: int, dtype: torch.dtype) -> Variants:
    """One prompt of `rows` tokens with nothing cached."""
    count = -(-rows // BLOCK)
    kv = torch.randn(count, 4, 2, KV_HEADS, BLOCK, HEAD_DIM).to(dtype)
    tables = torch.randperm(count).view(1, count).int()
    lengths, starts = torch.tensor([rows]).int(), torch.tensor([0, rows]).int()
    query = torch.randn(rows, HEADS, HEAD_DIM).to(dtype)
    scale = HEAD_DIM**-0.5

    def flash(i: int) -> torch.Tensor:
        key, value = reference.gather_kv(kv[:, i % 4], tables[0], rows)
        return functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None], key[None], value[None], is_causal=True, enable_gqa=True
        )

    return {
        "octavo": lambda i: ops.prefill_attention(
            query, kv[:, i % 4], tables, lengths, starts, scale
        ),
        "torch": flash,
    }


def linear_variants(rows: int, shape: tuple[int, int], copies: int, dtype: torch.dtype) -> Variants:
    weights = [torch.randn(shape).to(dtype) for _ in range(copies)]
    packed = [ops.pack_linear(w, None) for w in weights]
    bytes_ = [int8_linear.pack_linear(w, None) for w in weights]
    nibbles = [int4_linear.pack_linear(w, None) for w in weights]
    x = torch.randn(rows, shape[1]).to(dtype)
    return {
        "octavo": lambda i: packed[i % copies](x),
        "int8": lambda i: bytes_[i % copies](x),
        "int4": lambda i: nibbles[i % copies](x),
        "torch": lambda i: functional.linear(x, weights[i % copies]),
    }


def row_variants(rows: int, dtype: torch.dtype) -> dict[str, Variants]:
    x, residual = torch.randn(rows, HIDDEN).to(dtype), torch.randn(rows, HIDDEN).to(dtype)
    weight, gate_up = torch.ones(HIDDEN, dtype=dtype), torch.randn(rows, 2 * INTERMEDIATE).to(dtype)
    heads = torch.randn(rows, HEADS + 2 * KV_HEADS, HEAD_DIM).to(dtype)
    query, key = heads[:, :HEADS], heads[:, HEADS : HEADS + KV_HEADS]
    value = heads[:, HEADS + KV_HEADS :]
    angles = torch.rand(rows, HEAD_DIM // 2)
    layer = torch.zeros(rows // BLOCK + 1, 2, KV_HEADS, BLOCK, HEAD_DIM, dtype=dtype)
    slots = torch.arange(rows)
    return {
        "add_rms_norm": {
            "octavo": lambda i: ops.add_rms_norm(x, residual, weight, 1e-5),
            "torch": lambda i: functional.rms_norm(residual.add_(x), (HIDDEN,), weight, 1e-5),
        },
        "rotary": {
            "octavo": lambda i: ops.rotary(query, key, angles, angles),
            "torch": lambda i: reference.rotary(query, key, angles, angles),
        },
        "store_kv": {
            "octavo": lambda i: ops.store_kv(key, value, layer, slots),
            "torch": lambda i: reference.store_kv(key, value, layer, slots),
        },
        "silu_mul": {
            "octavo": lambda i: ops.silu_mul(gate_up),
            "torch": lambda i: reference.silu_mul(gate_up),
        },
    }


LINEARS = {
    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "o": (HIDDEN, HIDDEN),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}


def measure_all(context: int, dtype: torch.dtype) -> Times:
    times: Times = {}

    def note(operation: str, rows: int, variants: Variants, calls: int = LAYERS) -> None:
        for name, ms in measure(variants, calls).items():
            times.setdefault(operation, {}).setdefault(name, {})[rows] = ms

    for rows in BATCHES:
        note("decode", rows, decode_variants(rows, context, dtype))
        for operation, variants in row_variants(rows, dtype).items():
            note(operation, rows, variants)
        for operation, shape in LINEARS.items():
            note(operation, rows, linear_variants(rows, shape, LAYERS, dtype))
        note("lm_head", rows, linear_variants(rows, (VOCABULARY, HIDDEN), 1, dtype), calls=2)
    for rows in (64, 512):
        note("prefill", rows, prefill_variants(rows, dtype), calls=4)
    add_step(times)
    return times


def add_step(times: Times) -> None:
    """A whole decode step: 30 layers of everything (two norms each) and the head.

    With int8 or int4 weights only the linear layers differ from octavo's own.
    """

    def best(operation: str, name: str, rows: int) -> float:
        variants = times[operation]
        return variants.get(name, variants["octavo"])[rows]

    for name in ("octavo", "int8", "int4", "torch"):
        step = times.setdefault("step", {}).setdefault(name, {})
        for rows in BATCHES:
            layer = sum(
                best(operation, name, rows)
                for operation in times
                if operation not in ("lm_head", "prefill", "step")
            )
            norm = best("add_rms_norm", name, rows)
            step[rows] = LAYERS * (layer + norm) + best("lm_head", name, rows)


def print_table(times: Times, title: str) -> None:
    table = Table(title=title)
    columns = sorted({rows for by in times.values() for row in by.values() for rows in row})
    for heading in ("operation", "variant", *map(str, columns)):
        table.add_column(heading, justify="right" if heading.isdigit() else "left", no_wrap=True)
    for operation, variants in times.items():
        for name, by_rows in variants.items():
            cells = [f"{by_rows[rows]:.4f}" if rows in by_rows else "" for rows in columns]
            table.add_row(operation, name, *cells)
    Console().print(table)


def draw(times: Times, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for axis, operation in zip(axes, ("decode", "step"), strict=True):
        for name, by_rows in times[operation].items():
            axis.plot(list(by_rows), list(by_rows.values()), marker="o", label=name)
        axis.set(title=operation, xlabel="sequences", ylabel="ms", xscale="log", yscale="log")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the CPU kernels.")
    parser.add_argument("--context", type=int, default=192, help="tokens a sequence has cached")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float16"))
    parser.add_argument("--plot", type=Path, help="draw decode attention and step into this file")
    parser.add_argument("--json", type=Path, help="write all times into this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dtype: torch.dtype = getattr(torch, options.dtype)
    begin = time.perf_counter()
    ops.warm_up(dtype)
    print(f"warm-up {time.perf_counter() - begin:.2f} s")
    with torch.inference_mode():
        times = measure_all(options.context, dtype)
    title = f"ms per layer and step, {options.dtype}, {options.context} tokens of context"
    print_table(times, title)
    if options.json:
        options.json.write_text(json.dumps(times, indent=1))
    if options.plot:
        draw(times, options.plot)


if __name__ == "__main__":
    main()
