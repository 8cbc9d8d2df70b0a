"""Runs batches through `transformers`: a JSON request a line in, a JSON result out.

    python bench/transformers_batch.py generate|continuous|sequential MODEL DTYPE

generate is one static batch, continuous its continuous batching over a paged cache, sequential one
request after another.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

PAGE_TOKENS, NUM_PAGES, BATCH_TOKENS = 256, 72, 4096  # room for 32 requests of 512 tokens
MAX_REQUESTS = 64  # else as many as the first call has, for good
Run = Callable[[list[list[int]], int], None]


def make_generate(model: Any) -> Run:
    def run(prompts: list[list[int]], max_tokens: int) -> None:
        ids = torch.tensor(prompts)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        check(out.shape[1] - ids.shape[1], max_tokens)

    return run


def make_sequential(model: Any) -> Run:
    generate = make_generate(model)

    def run(prompts: list[list[int]], max_tokens: int) -> None:
        for prompt in prompts:
            generate([prompt], max_tokens)

    return run


def make_continuous(model: Any) -> Run:
    from transformers import ContinuousBatchingConfig

    paged = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=NUM_PAGES,
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=MAX_REQUESTS,
        allow_block_sharing=False,
        auto_switch_to_flash=False,
    )

    def run(prompts: list[list[int]], max_tokens: int) -> None:
        config = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1)
        outputs = model.generate_batch(
            prompts, generation_config=config, continuous_batching_config=paged,
            persistent_manager=True,
        )  # fmt: skip
        check(len(outputs), len(prompts))
        for output in outputs.values():
            check(len(output.generated_tokens), max_tokens)

    return run


def check(got: int, asked: int) -> None:
    if got != asked:
        raise RuntimeError(f"asked for {asked}, got {got}")


def main() -> None:
    way, path, dtype = sys.argv[1:]
    results = os.fdopen(os.dup(1), "w")  # transformers prints, too; into the log with it
    os.dup2(2, 1)
    makers = {
        "generate": make_generate,
        "continuous": make_continuous,
        "sequential": make_sequential,
    }
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()
    run = makers[way](model)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        with torch.inference_mode():
            run(request["prompts"], request["max_tokens"])
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds}), file=results, flush=True)


if __name__ == "__main__":
    main()
