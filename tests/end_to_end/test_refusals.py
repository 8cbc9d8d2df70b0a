"""What the service says when it cannot serve: no worker, too much work, a model it has not."""

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from end_to_end.fleet import running_fleet
from end_to_end.prompts import GREEDY, check_alive_and_quiet, expected, prompt_of
from octavo.client import AsyncClient, OctavoError
from octavo.client.completion import Completion

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("num_prefills", "num_decodes", "hint"),
    [
        (0, 0, "octavo decode-worker"),
        (1, 0, "octavo decode-worker"),
        (0, 1, "octavo prefill-worker"),
    ],
)
async def test_without_a_worker_the_answer_is_unavailable_and_a_hint(
    llama: Path, num_prefills: int, num_decodes: int, hint: str
) -> None:
    async with (
        running_fleet(llama, num_prefills, num_decodes) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
    ):
        with pytest.raises(OctavoError, match=f"start one with `{hint}`") as refused:
            await client.generate(prompt_of(200), max_tokens=4, **GREEDY)
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
        assert await client.tokenize("text needs no worker")
        await fleet.wait_until_quiet(1.0)


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(llama: Path) -> None:
    """The bound is in prompt tokens of requests without a first token; those inside are exact."""
    settings = {"max_num_batched_tokens": 8}
    async with (
        running_fleet(llama, prefill=settings, max_queued_tokens=1000) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        prompts = [prompt_of(400, seed=f"queue {i}") for i in range(8)]
        asked_at = time.monotonic()
        ended_after: list[float] = []

        async def ask(prompt: list[int]) -> Completion | OctavoError:
            try:
                return await client.generate(prompt, max_tokens=8, **GREEDY)
            except OctavoError as error:
                ended_after.append(time.monotonic() - asked_at)
                return error

        answers = await asyncio.gather(*(ask(prompt) for prompt in prompts))
        taken_s = time.monotonic() - asked_at
        refusals = [answer for answer in answers if isinstance(answer, OctavoError)]
        assert len(refusals) == 6, "two prompts of 400 tokens fit a bound of 1,000"
        for error in refusals:
            assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert error.retry_after_s is not None and error.retry_after_s > 0
            assert "1000" in error.message
        assert max(ended_after) < taken_s, "a refusal waited for the queue"
        for prompt, answer in zip(prompts, answers, strict=True):
            if isinstance(answer, Completion):
                assert answer.token_ids == expected(llama, prompt, 8)
        await check_alive_and_quiet(fleet, llama)


async def test_an_unknown_model_is_not_found_and_names_the_served_one(llama: Path) -> None:
    async with running_fleet(llama) as fleet, AsyncClient(fleet.address, timeout_s=20) as client:
        for ask in (
            client.generate([5], model="gpt", max_tokens=1),
            client.tokenize("x", model="gpt"),
            client.get_model("gpt"),
        ):
            with pytest.raises(OctavoError, match="llama") as refused:
                await ask
            assert (refused.value.code, refused.value.field) == (grpc.StatusCode.NOT_FOUND, "model")
        facts = await client.get_model("llama")
        assert (facts.vocab_size, facts.block_size) == (384, 16)
        await check_alive_and_quiet(fleet, llama)
