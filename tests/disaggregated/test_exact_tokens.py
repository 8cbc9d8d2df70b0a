"""P and D together give the tokens of `transformers`, however the prompt's KV got to D."""

import random
from pathlib import Path

import pytest
from checkpoints import reference_run
from disaggregated.pair import GREEDY, Pair, running_pair, sequence

from octavo.internal.v1alpha1 import worker_pb2

LENGTHS = (1, 15, 16, 17, 31, 32, 33, 64, 130, 255, 256, 257)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{seed}/{length}").choices(range(3, 384), k=length)


def expected(model: Path, prompt: list[int]) -> list[int]:
    return reference_run(model, prompt, GREEDY.max_tokens).token_ids


@pytest.mark.parametrize("transport", ["shared_memory", "bytes"])
async def test_pulled_prompts_decode_exactly(tiny_model: Path, transport: str) -> None:
    settings = {"transport": transport}
    async with running_pair(tiny_model, settings, settings) as pair:
        for length in LENGTHS:
            prompt = prompt_of(length)
            reply = await pair.generate(sequence(prompt))
            assert reply.tokens == expected(tiny_model, prompt), length
            assert reply.completed is not None and reply.prefill_completed is not None
            assert reply.completed.transferred_blocks == -(-length // 16)
            assert reply.prefill_completed.transferred_blocks == -(-length // 16)
        await pair.wait_until_quiet()
        sent, received = pair.prefill.path.counters, pair.decode.path.counters
        assert sent.blocks == received.blocks > 0
        assert received.bytes == received.blocks * pair.decode.engine.kv_cache.block_bytes
        assert received.digest_mismatches == 0
