"""Sampling values at their limits (C20), and seeds that give the same tokens everywhere."""

import asyncio
import math
from pathlib import Path
from typing import Any

import grpc
import pytest

from end_to_end.fleet import running_fleet
from end_to_end.prompts import GREEDY, check_alive_and_quiet, expected, prompt_of
from octavo.client import AsyncClient, OctavoError
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from service import Service

pytestmark = pytest.mark.asyncio(loop_scope="session")

VOCABULARY = 384
TAKEN: dict[str, list[float]] = {
    "temperature": [0.0, 1e-45, 1e-8, 1e-4, 2.0, 1e30],
    "top_p": [0.0, 1e-9, 1.0],
    "top_k": [-1, 0, 1, VOCABULARY, VOCABULARY + 1],
    "min_p": [0.0, 1.0],
}
# Whatever else is asked for, only the likeliest token is left.
GREEDY_VALUES: dict[str, list[float]] = {
    "temperature": [0.0, 1e-45, 1e-8],
    "top_p": [0.0, 1e-9],
    "top_k": [1],
    "min_p": [1],
}
REFUSED: dict[str, list[float]] = {
    "temperature": [math.nan, math.inf, -math.inf, -1.0, -1e-9],
    "top_p": [math.nan, math.inf, -math.inf, -0.1, 1.1],
    "top_k": [-2],
    "min_p": [math.nan, math.inf, -math.inf, -0.1, 1.1],
}
NUM_TOKENS = 6


def pairs() -> list[dict[str, Any]]:
    """Every value of every field with every value of every other."""
    names = list(TAKEN)
    found: list[dict[str, Any]] = [
        {one: a, other: b}
        for i, one in enumerate(names)
        for other in names[i + 1 :]
        for a in TAKEN[one]
        for b in TAKEN[other]
    ]
    return found + [{name: value} for name, values in TAKEN.items() for value in values]


def is_greedy(sampling: dict[str, float]) -> bool:
    if sampling == {"temperature": 1e30, "top_p": 1e-9}:
        return False  # every weight is 1 to double precision: the first id of equals
    return any(value in GREEDY_VALUES[name] for name, value in sampling.items())


async def refusal(stub: Any, prompt: list[int], **sampling: Any) -> OctavoError:
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=inference_pb2.SamplingParams(max_tokens=4, **sampling),
    )
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Generate(request, timeout=10)
    return OctavoError.of(failed.value)


async def test_values_at_the_limits_beside_normal_requests(service: Service, llama: Path) -> None:
    """C20: tiny values are greedy, off values are off, NaN is refused, neighbours stay exact."""
    prompt = prompt_of(20, seed="C20")
    greedy = expected(llama, prompt, NUM_TOKENS)
    neighbours = [prompt_of(30 + 11 * i, seed="neighbour") for i in range(8)]
    channel = grpc.aio.insecure_channel(service.address)
    async with AsyncClient(service.address, timeout_s=60) as client, channel:
        running = [
            asyncio.create_task(client.generate(p, max_tokens=200, **GREEDY)) for p in neighbours
        ]
        cases = pairs()
        replies = await asyncio.gather(
            *(
                client.generate(prompt, max_tokens=NUM_TOKENS, seed=3, ignore_eos=True, **case)
                for case in cases
            )
        )
        plain = await client.generate(prompt, max_tokens=NUM_TOKENS, seed=3, ignore_eos=True)
        for case, reply in zip(cases, replies, strict=True):
            assert len(reply.token_ids) == NUM_TOKENS
            if is_greedy(case):
                assert reply.token_ids == greedy, case
            elif "temperature" not in case:
                assert reply.token_ids == plain.token_ids, f"{case} is off"
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for name, values in REFUSED.items():
            for value in values:
                error = await refusal(stub, prompt, **{name: value})
                assert error.code is grpc.StatusCode.INVALID_ARGUMENT, (name, value)
                assert error.field == f"sampling.{name}"
        for neighbour, task in zip(neighbours, running, strict=True):
            assert (await task).token_ids == expected(llama, neighbour, 200)


SEEDED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 48, "ignore_eos": True}


async def seeded(
    client: AsyncClient, prompts: list[list[int]], *, at_once: bool, salt: str
) -> list[list[int]]:
    """Tokens of each prompt under a seed of its own."""
    calls = [
        client.generate(prompt, seed=1000 + i, cache_salt=salt, timeout_s=60, **SEEDED)
        for i, prompt in enumerate(prompts)
    ]
    if at_once:
        return [reply.token_ids for reply in await asyncio.gather(*calls)]
    return [(await call).token_ids for call in calls]


async def test_a_seed_gives_the_same_tokens_alone_in_a_crowd_preempted_and_on_two_pairs(
    one_pair: Service, two_pairs: Service, llama: Path
) -> None:
    prompts = [prompt_of(10 + 7 * i, seed="seeded") for i in range(32)]
    async with AsyncClient(one_pair.address) as client:
        alone = await seeded(client, prompts, at_once=False, salt="alone")
        assert alone == await seeded(client, prompts, at_once=False, salt="alone")
        assert alone == await seeded(client, prompts, at_once=True, salt="crowd")
        other = await client.generate(prompts[0], seed=7, **SEEDED)
        assert other.token_ids != alone[0], "the seed decides nothing"
    async with AsyncClient(two_pairs.address) as client:
        assert alone == await seeded(client, prompts, at_once=True, salt="two pairs")
    for preemption in ("recompute", "swap"):
        async with (
            running_fleet(llama, decode={"num_blocks": 24, "preemption": preemption}) as fleet,
            AsyncClient(fleet.address) as client,
        ):
            assert alone == await seeded(client, prompts, at_once=True, salt="preempted")
            (decode,) = await fleet.workers("decode")
            assert decode.counters.preemptions > 0, "the pool was not small enough to preempt"
    for service in (one_pair, two_pairs):
        await check_alive_and_quiet(service, llama)
