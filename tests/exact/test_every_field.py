"""Every field on SmolLM2-135M in float32: alone, crowded, through the split and preempted.

Log-probabilities may differ by 1e-4: chunks of a prompt and rows of a batch round differently.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from end_to_end.fleet import running_fleet
from end_to_end.test_every_field import (
    ALL,
    BASE,
    PREEMPTIONS,
    PROMPT,
    Result,
    check,
    in_process,
    make_llm,
    preempted,
    served,
)
from octavo.checkpoint.resolve import resolve_model
from octavo.client import AsyncClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
CLOSE: dict[str, float] = {"rel": 1e-4, "abs": 1e-4}


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve_model("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def alone(model: Path) -> list[Result]:
    llm = make_llm(model)
    return [in_process(llm, [case])[0] for case in ALL]


def test_in_process_crowded_and_preempted(model: Path, alone: list[Result]) -> None:
    check(in_process(make_llm(model), ALL), alone, CLOSE)
    for preemption in PREEMPTIONS:
        tight = make_llm(model, num_blocks=12, preemption=preemption)
        check(in_process(tight, ALL), alone, CLOSE)
        assert preempted(tight.counters(), preemption) == tight.counters().preemptions > 0


@pytest.mark.parametrize("num_pairs", [1, 2])
@pytest.mark.parametrize("way", ["pulled", "local", *PREEMPTIONS])
async def test_served_it_is_the_same(
    model: Path, alone: list[Result], num_pairs: int, way: str
) -> None:
    decode: dict[str, Any] = {"local_prefill_max_tokens": 64 if way == "local" else 0}
    if way in PREEMPTIONS:
        decode |= {"num_blocks": 12, "preemption": way}
    async with (
        running_fleet(model, num_pairs, num_pairs, decode=decode) as fleet,
        AsyncClient(fleet.address, timeout_s=900) as client,
    ):
        for salts in ([f"cold {i}" for i in range(len(ALL))], ["hot"] * len(ALL)):
            asked = [
                client.generate(PROMPT, cache_salt=salt, **BASE | case)
                for case, salt in zip(ALL, salts, strict=True)
            ]
            check([served(reply) for reply in await asyncio.gather(*asked)], alone, CLOSE)
        for worker in await fleet.workers("decode"):
            assert (worker.counters.preemptions > 0) == (way in PREEMPTIONS)
            assert preempted(worker.counters, way) == worker.counters.preemptions
        await fleet.wait_until_quiet()
