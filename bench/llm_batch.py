"""Runs batches through an `LLM` class in this process: a JSON request a line in, a result out.

    python bench/llm_batch.py octavo|vllm MODEL SETTINGS_JSON

Runs in the environment of either, so it imports nothing of this repository but that class.
"""

import importlib
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    engine, model, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    # Only results go to standard output; an engine that prints, prints into the log.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    library: Any = importlib.import_module(engine)
    own = {"skip_tokenizer_init": True} if engine == "vllm" else {}
    llm = library.LLM(model=model, **settings, **own)
    options = {"detokenize": False} if engine == "vllm" else {}
    for line in sys.stdin:
        request = json.loads(line)
        sampling = library.SamplingParams(
            temperature=0.0, max_tokens=request["max_tokens"], ignore_eos=True, **options
        )
        prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
        start = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        counts = {len(output.outputs[0].token_ids) for output in outputs}
        if counts != {request["max_tokens"]}:
            raise RuntimeError(f"asked for {request['max_tokens']} tokens, got {counts}")
        print(json.dumps({"seconds": seconds}), file=results, flush=True)


if __name__ == "__main__":
    main()
