"""What smaller weights cost in quality: perplexity, and greedy agreement with float32.

    python bench/quality.py [--model NAME] [--json FILE] [--plot FILE]

Perplexity is taken over a text of this repository, in windows without overlap. For agreement,
float32 continues each prompt greedily; every variant is then given the same tokens and asked for
its own next token at each place. `ties` are places where it chooses otherwise and float32's two
best logits are no further apart than neighbouring bfloat16 numbers of their size: logits in
bfloat16 cannot tell these apart. A speed is only claimed where agreement and ties come to 99 %.
"""

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from octavo.checkpoint.resolve import resolve_model
from octavo.engine.batch import Batch
from octavo.engine.models import DecoderModel, load_model
from octavo.kernels.select import for_device
from octavo.text.tokenizer import Tokenizer
from report import machine

CPU = torch.device("cpu")
TEXT = Path(__file__).parent / "texts" / "harbour.txt"
BLOCK = 16
BFLOAT16_EPSILON = 2.0**-7  # spacing of its numbers from 1 to 2
PROMPTS = (
    "The capital of France is",
    "To make bread you need",
    "Once upon a time there was a lighthouse keeper who",
    "The three most important rules of programming are",
    "Water boils when",
    "In 1969 the first people",
    "def fibonacci(n):\n",
    "The difference between a virus and a bacterium is",
)
VARIANTS: dict[str, tuple[torch.dtype, str | None]] = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8, float32": (torch.float32, "int8"),
    "int8, bfloat16": (torch.bfloat16, "int8"),
    "int4, float32": (torch.float32, "int4"),
    "int4, bfloat16": (torch.bfloat16, "int4"),
}


@dataclass(frozen=True)
class Variant:
    """A loaded model that scores sequences from their start."""

    model: DecoderModel
    dtype: torch.dtype

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """[len(token_ids), vocab_size]: what follows after each token."""
        config, count = self.model.config, len(token_ids)
        num_blocks = -(-count // BLOCK)
        shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, BLOCK, config.head_dim)
        rows = torch.arange(count)
        batch = Batch(
            token_ids=torch.tensor(token_ids),
            positions=rows,
            slot_mapping=rows,
            block_tables=torch.arange(num_blocks, dtype=torch.int32).view(1, -1),
            seq_lens=torch.tensor([count], dtype=torch.int32),
            query_start=torch.tensor([0, count], dtype=torch.int32),
            num_decodes=0,
            logit_rows=rows,
        )
        return self.model.forward(batch, torch.zeros(shape, dtype=self.dtype)).float()


def load(path: Path, name: str) -> Variant:
    dtype, quantization = VARIANTS[name]
    model = load_model(
        path, dtype=dtype, device=CPU, kernels=for_device(CPU), quantization=quantization
    )
    return Variant(model, dtype)


def perplexity(variant: Variant, token_ids: list[int], window: int) -> float:
    """exp of the mean surprise at every token that has one before it in its window."""
    surprise, count = 0.0, 0
    for start in range(0, len(token_ids), window):
        ids = token_ids[start : start + window]
        logs = variant.logits(ids).log_softmax(dim=-1)
        following = torch.tensor(ids[1:])
        surprise -= float(logs[:-1].gather(1, following[:, None]).sum())
        count += len(following)
    return math.exp(surprise / count)


def continuation(variant: Variant, prompt: list[int], count: int) -> list[int]:
    """prompt and `count` greedy tokens; the end of a sequence does not end it."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(int(variant.logits(token_ids)[-1].argmax()))
    return token_ids


def are_near_ties(logits: torch.Tensor) -> torch.Tensor:
    """[rows], bool: whether the two best logits lie within one spacing of bfloat16."""
    best = logits.topk(2, dim=-1).values
    spacing = best[:, 0].abs().log2().floor().exp2() * BFLOAT16_EPSILON
    return best[:, 0] - best[:, 1] <= spacing


@dataclass(frozen=True)
class Choices:
    """float32's greedy tokens after each prompt, and where two of them were as good."""

    sequences: list[list[int]]
    starts: list[int]
    near_ties: list[torch.Tensor]

    @classmethod
    def of(cls, variant: Variant, prompts: list[list[int]], count: int) -> "Choices":
        sequences = [continuation(variant, prompt, count) for prompt in prompts]
        starts = [len(prompt) for prompt in prompts]
        found = [
            are_near_ties(variant.logits(ids))[start - 1 : -1]
            for ids, start in zip(sequences, starts, strict=True)
        ]
        return cls(sequences, starts, found)

    def agreement(self, variant: Variant) -> dict[str, float]:
        same = ties = total = 0
        for ids, start, near_tie in zip(self.sequences, self.starts, self.near_ties, strict=True):
            chosen = variant.logits(ids)[start - 1 : -1].argmax(dim=-1)
            equal = chosen == torch.tensor(ids[start:])
            same += int(equal.sum())
            ties += int((~equal & near_tie).sum())
            total += len(equal)
        return {"agreement": same / total, "ties": ties / total}


def print_table(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title)
    for heading in ("weights, activations", "perplexity", "over float32", "agreement", "ties"):
        table.add_column(heading, justify="left" if "," in heading else "right")
    for row in rows:
        ratio = row["perplexity"] / rows[0]["perplexity"] - 1
        table.add_row(
            row["variant"],
            f"{row['perplexity']:.3f}",
            f"{ratio:+.2%}",
            f"{row['agreement']:.2%}",
            f"{row['ties']:.2%}",
        )
    Console().print(table)


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    names = [row["variant"] for row in rows]
    for axis, key in zip(axes, ("perplexity", "agreement"), strict=True):
        values = [row[key] for row in rows]
        bars = axis.bar(names, values)
        axis.bar_label(bars, [f"{value:.4g}" for value in values])
        axis.set_title(key)
        axis.tick_params(axis="x", labelsize=8)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--text", type=Path, default=TEXT, help="score this file")
    parser.add_argument("--window", type=int, default=512, help="tokens scored together")
    parser.add_argument("--tokens", type=int, default=48, help="greedy tokens after each prompt")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, help="draw both figures here")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    path = resolve_model(args.model)
    tokenizer = Tokenizer.load(path)
    text = tokenizer.encode(args.text.read_text(encoding="utf-8"))
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    rows: list[dict[str, Any]] = []
    choices: Choices | None = None
    for name in VARIANTS:
        variant = load(path, name)
        choices = choices or Choices.of(variant, prompts, args.tokens)
        score = perplexity(variant, text, args.window)
        rows.append({"variant": name, "perplexity": score} | choices.agreement(variant))
    title = f"{args.model}: {len(text)} tokens of {args.text.name}, {machine()}"
    print_table(rows, title)
    if args.json:
        args.json.write_text(json.dumps({"title": title, "rows": rows}, indent=1) + "\n")
    if args.plot:
        draw(rows, title, args.plot)


if __name__ == "__main__":
    main()
