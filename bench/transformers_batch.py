"""Runs batches through `transformers` generate: a JSON request a line in, a JSON result out."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
    model.eval()
    for line in sys.stdin:
        request = json.loads(line)
        ids = torch.tensor(request["prompts"])
        options = {
            "max_new_tokens": request["max_tokens"],
            "min_new_tokens": request["max_tokens"],
            "do_sample": False,
            "attention_mask": torch.ones_like(ids),
            "pad_token_id": 0,
        }
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids[:1], **{**options, "max_new_tokens": 1, "min_new_tokens": 1,
                                       "attention_mask": torch.ones_like(ids[:1])})  # fmt: skip
            one_token = time.perf_counter() - start
            start = time.perf_counter()
            model.generate(ids, **options)
        print(json.dumps({"seconds": time.perf_counter() - start, "ttft": one_token}), flush=True)


if __name__ == "__main__":
    main()
