"""Guessed tokens through the whole service: the same answers in fewer steps, on decode workers."""

from pathlib import Path
from typing import Any

import pytest

from checkpoints import PHRASE, circling
from end_to_end.fleet import Fleet, running_fleet
from end_to_end.prompts import GREEDY, crowd, expected, prompt_of, streamed
from octavo.client import AsyncClient

PROMPTS = [prompt_of(length, seed="lookup") + PHRASE[:3] for length in (14, 30, 37, 62)]
NUM_TOKENS = 60


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return circling(tmp_path_factory.mktemp("lookup") / "llama")


async def counts(fleet: Fleet, role: str) -> tuple[int, int]:
    """(proposed, accepted) of all workers of a role."""
    counters = [worker.counters for worker in await fleet.workers(role)]
    return (
        sum(each.draft_tokens_proposed for each in counters),
        sum(each.draft_tokens_accepted for each in counters),
    )


@pytest.mark.parametrize("num_pairs", [1, 2])
@pytest.mark.parametrize("num_blocks", [256, 16], ids=["roomy", "tight"])
async def test_answers_are_exact_whatever_is_guessed(
    llama: Path, num_pairs: int, num_blocks: int
) -> None:
    answers = [expected(llama, prompt, NUM_TOKENS) for prompt in PROMPTS]
    decode: dict[str, Any] = {"num_blocks": num_blocks}
    async with (
        running_fleet(llama, num_pairs, num_pairs, decode=decode) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        fields = GREEDY | {"max_tokens": NUM_TOKENS}
        plain = await crowd(client, PROMPTS, prompt_lookup=False, **fields)
        assert [completion.token_ids for completion in plain] == answers
        assert await counts(fleet, "decode") == (0, 0)
        for wish in ({"prompt_lookup": True}, {}, {"prompt_lookup": True, "logprobs": 1}):
            found = await crowd(client, PROMPTS, **fields, **wish)
            assert [completion.token_ids for completion in found] == answers, wish
        proposed, accepted = await counts(fleet, "decode")
        assert 40 < accepted <= proposed
        assert await counts(fleet, "prefill") == (0, 0)
        preemptions = sum(w.counters.preemptions for w in await fleet.workers("decode"))
        assert preemptions == 0 or num_blocks == 16
        await fleet.wait_until_quiet()


async def test_what_ends_an_output_ends_it_among_guesses_too(llama: Path) -> None:
    async with (
        running_fleet(llama) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        whole = await client.generate(PROMPTS[1], max_tokens=NUM_TOKENS, **GREEDY)
        late = whole.token_ids[45]
        ends: list[dict[str, Any]] = [
            {"stop": [whole.text[-12:-6]]},
            {"stop": [whole.text[-12:-6]], "include_stop_text": True, "logprobs": 1},
            {"stop_token_ids": [late], "min_tokens": 40},
            {"max_tokens": 50},
            {"max_tokens": 2},
        ]
        for end in ends:
            fields = GREEDY | {"max_tokens": NUM_TOKENS} | end
            plain = await client.generate(PROMPTS[1], prompt_lookup=False, **fields)
            for found in (
                await client.generate(PROMPTS[1], prompt_lookup=True, **fields),
                await streamed(client, PROMPTS[1], prompt_lookup=True, **fields),
            ):
                assert found.text == plain.text, end
                assert found.token_ids == plain.token_ids, end
                assert found.finish_reason == plain.finish_reason, end
                assert found.logprobs == plain.logprobs, end
        assert (await counts(fleet, "decode"))[1] > 20
        await fleet.wait_until_quiet()


async def test_a_worker_that_guesses_nothing_ignores_the_wish(llama: Path) -> None:
    async with (
        running_fleet(llama, decode={"max_draft_tokens": 0}) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        fields = GREEDY | {"max_tokens": NUM_TOKENS}
        found = await client.generate(PROMPTS[0], prompt_lookup=True, **fields)
        assert found.token_ids == expected(llama, PROMPTS[0], NUM_TOKENS)
        assert await counts(fleet, "decode") == (0, 0)
