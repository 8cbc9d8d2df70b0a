"""SmolLM2-135M in float32 gives the tokens of `transformers`, whatever way a request takes.

Slow: `make exact`. Every situation of the service runs through `octavo up`, as users start it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from checkpoints import reference_run
from exact.matrix import LENGTHS, NUM_OUTPUT_TOKENS, Matrix, make_matrix
from octavo import LLM, SamplingParams
from octavo.checkpoint.resolve import resolve_model
from octavo.client import AsyncClient
from service import Service, running_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
NUM_GROWN = 96
GREEDY = {"temperature": 0.0, "max_tokens": NUM_OUTPUT_TOKENS, "ignore_eos": True}
TOPOLOGIES = [(1, 1, "shared_memory"), (1, 1, "bytes"), (2, 2, "shared_memory"), (2, 2, "bytes")]


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve_model("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def matrix(model: Path) -> Iterator[Matrix]:
    matrix = make_matrix(model, 49_000)
    yield matrix
    print(f"\nnear-ties counted as equal: {len(matrix.near_ties)}")
    for line in matrix.near_ties:
        print(" ", line)


@pytest.fixture(params=TOPOLOGIES, ids=lambda p: f"{p[0]}P{p[1]}D-{p[2]}")
async def service(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[Service]:
    prefill, decode, transport = request.param
    flags = ["--dtype", "float32", "--transport", transport]
    flags += ["--prefill-workers", str(prefill), "--decode-workers", str(decode)]
    async with running_service(model, *flags) as service:
        yield service


async def ask(client: AsyncClient, prompt: list[int], salt: str) -> list[int]:
    completion = await client.generate(prompt, cache_salt=salt, timeout_s=900, **GREEDY)
    return completion.token_ids


async def test_cold_hot_partly_hot_and_crowded(service: Service, matrix: Matrix) -> None:
    async with AsyncClient(service.address) as client:
        for length in LENGTHS:
            prompt = matrix.prompts[length]
            matrix.check(length, await ask(client, prompt, f"c{length}"), "cold")
            matrix.check(length, await ask(client, prompt, f"c{length}"), "full prefix hit")
            await ask(client, prompt[: max(1, length // 2)], f"p{length}")
            matrix.check(length, await ask(client, prompt, f"p{length}"), "partial prefix hit")
        crowd = [LENGTHS[i % len(LENGTHS)] for i in range(32)]
        answers = await asyncio.gather(
            *(ask(client, matrix.prompts[n], f"crowd{i}") for i, n in enumerate(crowd))
        )
        for length, answer in zip(crowd, answers, strict=True):
            matrix.check(length, answer, "among 31 others")
    await service.wait_until_quiet()
    blocks = sum(w.counters.blocks_transferred for w in await service.workers("decode"))
    assert blocks > 0, "no block was handed over"


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
async def test_preempted_by_a_small_pool(model: Path, matrix: Matrix, preemption: str) -> None:
    """Each begins with 1 to 9 of 40 blocks and grows by 6: those that run together exceed it."""
    lengths = [length for length in LENGTHS if length <= 129]
    longer = {
        length: reference_run(model, matrix.prompts[length], NUM_GROWN, ignore_eos=True)
        for length in lengths
    }
    grown = Matrix(matrix.prompts, longer, matrix.near_ties)
    crowd = lengths * 2
    env = {"OCTAVO_NUM_BLOCKS": "40", "OCTAVO_PREEMPTION": preemption}
    async with running_service(model, "--dtype", "float32", env=env) as service:
        async with AsyncClient(service.address, timeout_s=900) as client:
            answers = await asyncio.gather(
                *(
                    client.generate(
                        matrix.prompts[n], cache_salt=f"s{i}", **GREEDY | {"max_tokens": NUM_GROWN}
                    )
                    for i, n in enumerate(crowd)
                )
            )
        for length, answer in zip(crowd, answers, strict=True):
            grown.check(length, answer.token_ids, "preempted")
        preemptions = sum(w.counters.preemptions for w in await service.workers("decode"))
        print(f"\npreemptions: {preemptions}")
        assert preemptions > 0, "the pool was not small enough to preempt"
        await service.wait_until_quiet()


def test_in_process(model: Path, matrix: Matrix) -> None:
    llm = LLM(model=str(model), dtype="float32")
    params = SamplingParams(**GREEDY)
    for situation in ("in process, cold batch", "in process, hot batch"):
        prompts = [matrix.prompts[length] for length in LENGTHS]
        for length, output in zip(LENGTHS, llm.generate(prompts, params), strict=True):
            matrix.check(length, output.outputs[0].token_ids, situation)
