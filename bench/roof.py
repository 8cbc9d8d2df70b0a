"""How near the machine's limits the engine comes: prefill beside a GEMM, one step beside a stream.

    python bench/roof.py [--kinds float32,bfloat16,int8] [--rounds 7] [--json FILE] [--plot FILE]

One thread, one process, rounds in turn: roofs and engines are measured inside each round, each as
the best of a few tries in CPU time of this thread. Prefill counts the multiplications it needs
(causal attention: half the square); its roof is the faster of torch's bfloat16 and float32 products
(on a processor without bfloat16 instructions torch emulates the former). The step's roof is reading
as many bytes as the weights of all products have, once; the embedding's one row is left out.
"""

import argparse
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.progress import Progress

from figures import Figure, Result, figure_of, finish
from load import random_prompts
from octavo.checkpoint.config import ModelConfig
from octavo.checkpoint.resolve import resolve_model
from octavo.engine.build import build_engine
from octavo.engine.config import QUANTIZATIONS, EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.sequence import Sequence
from octavo.engine.step_budget import num_layer_parameters
from octavo.sampling_params import SamplingParams
from report import machine
from stream import read

# Bytes a weight; int4 with a 16-bit scale for each 32 weights.
WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5625}
GEMM_SIZE = 1_536
CONTEXT = 128  # tokens before the timed steps
TRIES = 3
GROUP = b"r" * 32
_names = itertools.count()


def kinds_here() -> list[str]:
    return ["float32", "bfloat16", *(q for q in QUANTIZATIONS if q in WEIGHT_BYTES)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--kinds", default=",".join(kinds_here()), help="of weights")
    parser.add_argument(
        "--quantized-dtype", default="bfloat16", help="of what quantised products leave out"
    )
    parser.add_argument("--prompt-tokens", type=int, default=2_048)
    parser.add_argument("--steps", type=int, default=16, help="timed in a try")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, default=Path("bench/results/roof.png"))
    return parser.parse_args()


def best_s(run: Callable[[], object], tries: int = TRIES) -> float:
    """CPU seconds of this thread, the least of a few tries."""
    best = float("inf")
    for _ in range(tries):
        begin = time.thread_time()
        run()
        best = min(best, time.thread_time() - begin)
    return best


def gemm_gflop_per_s(dtype: torch.dtype) -> float:
    left = torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype)
    right = torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype)
    return 2 * GEMM_SIZE**3 / best_s(lambda: left @ right.T) / 1e9


def stream_s(num_bytes: float) -> float:
    """Reading so many bytes once, by the fastest of three readers."""
    memory = torch.ones(int(num_bytes) // 4)
    readers = (memory.sum, lambda: torch.dot(memory, memory), lambda: read(memory))
    return min(best_s(reader) for reader in readers)


def product_parameters(config: ModelConfig) -> int:
    """Weights of all products, the head included."""
    return num_layer_parameters(config) + config.vocab_size * config.hidden_size


def prefill_flop(config: ModelConfig, num_tokens: int) -> float:
    """What a prompt needs: products of every token, causal attention, the head once."""
    products = 2 * num_layer_parameters(config) * num_tokens
    pairs = num_tokens * (num_tokens + 1) / 2
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * pairs
    return products + attention + 2 * config.vocab_size * config.hidden_size


class TimedEngine:
    """One engine with one kind of weights, driven on this thread."""

    def __init__(self, model: Path, kind: str, args: argparse.Namespace) -> None:
        is_quantized = kind in QUANTIZATIONS
        config = EngineConfig(
            model=str(model),
            dtype=args.quantized_dtype if is_quantized else kind,
            quantization=kind if is_quantized else None,
            num_blocks=(2 * args.prompt_tokens) // 16 + 64,
            max_draft_tokens=0,  # a step is of one token
        )
        self.kind = kind
        self.engine: Engine = build_engine(config)
        self.config = self.engine.model_config

    def prefill(self, num_tokens: int) -> None:
        """A prompt that shares nothing with earlier ones, to its first token."""
        self._add(num_tokens, 1)
        while self.engine.scheduler.has_work:
            self.engine.step()

    def step_s(self, steps: int) -> float:
        """The fastest of some steps of one sequence, everything around the model included."""
        name = self._add(CONTEXT, steps + 2)
        for _ in range(-(-CONTEXT // 32) + 1):  # the prompt, in one or several steps
            if any(output.token_ids for output in self.engine.step()):
                break
        best = best_s(lambda: self.engine.step(), steps)
        self.engine.scheduler.release(name)
        while self.engine.scheduler.has_work:
            self.engine.step()
        return best

    def _add(self, num_tokens: int, max_tokens: int) -> str:
        number = next(_names)
        (prompt,) = random_prompts(1, num_tokens, 40_000, seed=number)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        seq = Sequence(str(number), prompt, num_tokens, sampling, GROUP)
        self.engine.scheduler.add(seq)
        return seq.seq_id


def measure_kind(timed: TimedEngine, args: argparse.Namespace) -> dict[str, Any]:
    num_bytes = WEIGHT_BYTES[timed.kind] * product_parameters(timed.config)
    prefill = best_s(lambda: timed.prefill(args.prompt_tokens), 1)
    return {
        "kind": timed.kind,
        "prefill_gflop_per_s": prefill_flop(timed.config, args.prompt_tokens) / prefill / 1e9,
        "step_ms": timed.step_s(args.steps) * 1e3,
        "stream_ms": stream_s(num_bytes) * 1e3,
        "weight_mb": num_bytes / 1e6,
    }


def measure(args: argparse.Namespace, model: Path) -> list[dict[str, Any]]:
    engines = [TimedEngine(model, kind, args) for kind in args.kinds.split(",")]
    rows = []
    with Progress() as progress:
        task = progress.add_task("", total=(args.rounds + 1) * (len(engines) + 1))
        for index in range(-1, args.rounds):  # round -1 warms up and is not counted
            progress.update(task, description="matrix products")
            gemm = {
                f"{name}_gemm": gemm_gflop_per_s(getattr(torch, name))
                for name in ("bfloat16", "float32")
            }
            progress.advance(task)
            for timed in engines if index % 2 else reversed(engines):
                progress.update(task, description=timed.kind)
                rows.append({"round": index} | gemm | measure_kind(timed, args))
                progress.advance(task)
    return [row for row in rows if row["round"] >= 0]


def figures_of(rows: list[dict[str, Any]]) -> list[Figure]:
    figures = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        mid = {key: median(row[key] for row in mine) for key in mine[0] if key != "kind"}
        shares = [
            100 * row["prefill_gflop_per_s"] / max(row["bfloat16_gemm"], row["float32_gemm"])
            for row in mine
        ]
        detail = (
            f"{mid['prefill_gflop_per_s']:.1f} GFLOP/s; GEMM bf16"
            f" {mid['bfloat16_gemm']:.1f}, float32 {mid['float32_gemm']:.1f}"
        )
        figures.append(figure_of("prefill-flops", shares, detail, kind))
        ratios = [row["step_ms"] / row["stream_ms"] for row in mine]
        detail = (
            f"{mid['step_ms']:.1f} / {mid['stream_ms']:.1f} ms"
            f" ({mid['weight_mb']:.0f} MB, {mid['weight_mb'] / mid['stream_ms']:.1f} GB/s)"
        )
        figures.append(figure_of("step-stream", ratios, detail, kind))
    return figures


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    with torch.inference_mode():
        rows = measure(args, resolve_model(args.model))
    title = f"prefill of {args.prompt_tokens:,} tokens, step at batch 1, one core of {machine()}"
    finish(Result(title, figures_of(rows), rows), args.plot, args.json)


if __name__ == "__main__":
    main()
