"""Whether outputs under random JSON schemas are what was asked for.

    python bench/structured_output.py [--model NAME] [--requests 5000] [--max-tokens 160]

Every request has a schema of its own; half are greedy, half drawn. An output that ends with STOP
must parse and validate, one that max_tokens cut must say LENGTH; any other outcome ends the run
with 1. Numbers are what they say, decimals of any length, as JSON Schema has it.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import jsonschema
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from octavo import LLM, SamplingParams
from octavo.local_request import RequestOutput
from random_schemas import Schema, random_schema

PROMPT = "Answer with an example that follows this JSON schema:\n{schema}\nAnswer: "
MAX_SHOWN_SCHEMA = 400  # characters of it that the prompt holds
GREEDY, DRAWN = 0.0, 1.0


@dataclass(frozen=True)
class Asked:
    """One request."""

    schema: Schema
    params: SamplingParams

    @property
    def prompt(self) -> str:
        return PROMPT.format(schema=json.dumps(self.schema, ensure_ascii=False)[:MAX_SHOWN_SCHEMA])


def random_requests(count: int, max_tokens: int, seed: int) -> list[Asked]:
    """Half greedy, half drawn."""
    rng = random.Random(seed)
    asked = []
    for number in range(count):
        schema = random_schema(rng)
        params = SamplingParams(
            json_schema=schema,
            max_tokens=max_tokens,
            temperature=DRAWN if number % 2 else GREEDY,
            seed=number,
        )
        asked.append(Asked(schema, params))
    return asked


def fault_of(text: str, finish_reason: str, num_tokens: int, asked: Asked) -> str | None:
    """What is wrong with an output; None if nothing is."""
    if finish_reason == "length":
        is_cut = num_tokens == asked.params.max_tokens
        return None if is_cut else f"length after {num_tokens} tokens"
    if finish_reason != "stop":
        return f"finish reason {finish_reason}"
    try:
        jsonschema.validate(json.loads(text, parse_float=Decimal), asked.schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def run_batch(llm: LLM, batch: Sequence[Asked]) -> list[RequestOutput]:
    """All at once."""
    params = [asked.params for asked in batch]
    return llm.generate([asked.prompt for asked in batch], params, use_tqdm=False)


def check_outputs(outputs: Sequence[RequestOutput], batch: Sequence[Asked]) -> list[str]:
    """The faults, each with its schema and text."""
    faults = []
    for output, asked in zip(outputs, batch, strict=True):
        (one,) = output.outputs
        fault = fault_of(one.text, one.finish_reason, len(one.token_ids), asked)
        if fault is not None:
            faults.append(f"{fault}\n  schema {json.dumps(asked.schema)}\n  text {one.text!r}")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float, default=float("inf"), help="then it stops")
    args = parser.parse_args()
    llm = LLM(args.model, dtype=args.dtype)
    asked = random_requests(args.requests, args.max_tokens, args.seed)
    reasons: Counter[str] = Counter()
    faults: list[str] = []
    columns = ("requests", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    began, num_tokens = time.perf_counter(), 0
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(asked))
        for start in range(0, len(asked), args.batch):
            if time.perf_counter() - began > args.max_seconds:
                break
            batch = asked[start : start + args.batch]
            outputs = run_batch(llm, batch)
            faults += check_outputs(outputs, batch)
            reasons.update(output.outputs[0].finish_reason for output in outputs)
            num_tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
            progress.advance(task, len(batch))
    seconds = time.perf_counter() - began
    print(f"{args.model}: {reasons.total()} requests, {dict(reasons)}, {len(faults)} faults")
    print(f"{num_tokens} tokens in {seconds:.1f} s, {num_tokens / seconds:.0f} tokens/s")
    print("\n".join(faults[:20]))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
