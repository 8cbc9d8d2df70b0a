"""SmolLM2-135M-Instruct, the model of the quick start: a few prompts; tests/exact has them all.

float32 through `octavo up`, token by token; bfloat16 in this process, logit by logit.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import reference_logits
from checkpoints.paged import PagedPool, PagedSequence
from exact.matrix import NUM_OUTPUT_TOKENS, make_matrix
from octavo.checkpoint.resolve import resolve_model
from octavo.client import AsyncClient, Completion
from octavo.engine.models import load_model
from octavo.kernels.select import for_device
from service import running_service

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

FIELDS: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": NUM_OUTPUT_TOKENS}
MOST_ERROR = 0.45  # of logits whose standard deviation is 2.6
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """Fetched and converted on the first call."""
    return resolve_model("smollm2-135m-instruct")


async def test_three_prompts_are_exact_in_float32(smollm2: Path) -> None:
    """17 tokens are computed by the decode worker, 65 and 257 are handed over."""
    matrix = make_matrix(smollm2, 49_000, (17, 65, 257))
    env = {"OCTAVO_NUM_BLOCKS": "128"}
    async with (
        running_service(smollm2, "--dtype", "float32", env=env) as service,
        AsyncClient(service.address, timeout_s=100) as client,
    ):
        for length, prompt in matrix.prompts.items():
            reply = await client.generate(prompt, **FIELDS)
            matrix.check(length, reply.token_ids, "SmolLM2, cold")
        reply = await client.generate(matrix.prompts[65], **FIELDS)
        matrix.check(65, reply.token_ids, "SmolLM2, hot")
        scored = await client.generate(matrix.prompts[65], logprobs=3, prompt_logprobs=3, **FIELDS)
        check_logprobs(smollm2, matrix.prompts[65], scored)
        answer = await client.generate(QUESTION, temperature=0.0, max_tokens=16)
        assert "Paris" in answer.text
        await service.wait_until_quiet()
        (decode,) = await service.workers("decode")
        assert decode.counters.blocks_transferred >= 5 + 17
    print(f"\nnear-ties counted as equal: {len(matrix.near_ties)}", *matrix.near_ties, sep="\n  ")


def check_logprobs(model: Path, prompt: list[int], completion: Completion) -> None:
    """Of prompt and output, within 1e-4 of `transformers`."""
    token_ids = prompt + completion.token_ids
    expected = torch.log_softmax(reference_logits(model, token_ids[:-1]).double(), dim=-1)
    found = [*(completion.prompt_logprobs or [])[1:], *(completion.logprobs or [])]
    for row, token_id, one in zip(expected, token_ids[1:], found, strict=True):
        assert one is not None and one.token_id == token_id and len(one.top) == 3
        assert one.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
        for likely, value in one.top:
            assert value == pytest.approx(float(row[likely]), abs=1e-4)


async def test_bfloat16_logits_are_as_close_to_float32_as_those_of_transformers(
    smollm2: Path,
) -> None:
    """Over four prompts of 70 tokens and 12 decode steps each, all in bfloat16, teacher-forced.

    The root mean square of the distance to float32 logits is at most MOST_ERROR on every step, and
    on average at most 1.25 times that of `transformers` in bfloat16, whose worst step is 0.37. (One
    prompt says little: either engine's error may be half as large as on another.)
    """
    device = torch.device("cpu")
    model = load_model(smollm2, dtype=torch.bfloat16, device=device, kernels=for_device(device))
    our_errors, their_errors = [], []
    for seed in range(4, 8):
        token_ids = np.random.default_rng(seed).integers(3, 49_000, size=82).tolist()
        exact = reference_logits(smollm2, token_ids)[69:]
        theirs = reference_logits(smollm2, token_ids, torch.bfloat16)[69:]
        pool, sequence = PagedPool(model, torch.bfloat16), PagedSequence()
        rows = [pool.step([(sequence, token_ids[:70])], logit_rows=[69])]
        rows += [pool.step([(sequence, [token])], num_decodes=1) for token in token_ids[70:]]
        ours = torch.cat(rows)
        assert ours.shape == exact.shape
        our_errors.append((ours - exact).square().mean(dim=1).sqrt())
        their_errors.append((theirs - exact).square().mean(dim=1).sqrt())
    our_error, their_error = torch.cat(our_errors), torch.cat(their_errors)
    for name, error in (("octavo", our_error), ("transformers", their_error)):
        print(f"\nbfloat16 RMS error of {name}: {error.mean():.4f} (worst step {error.max():.4f})")
    assert our_error.max() <= MOST_ERROR
    assert our_error.mean() <= 1.25 * their_error.mean()
