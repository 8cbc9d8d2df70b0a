"""Greedy tokens through the router are those of `transformers`, whatever way a request takes.

Every family over both transports in this process; the Llama also through `octavo up`. The real
model's whole matrix is in tests/exact.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints import FAMILIES, reference_run
from end_to_end.fleet import running_fleet
from end_to_end.prompts import check_alive_and_quiet, crowd, streamed
from exact.matrix import Matrix, make_matrix
from octavo.client import AsyncClient
from service import Deployment, Service

pytestmark = pytest.mark.asyncio(loop_scope="session")

LENGTHS = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 256, 257)
FIELDS: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 32}
NUM_GROWN = 120
ALWAYS_PULL = {"local_prefill_max_tokens": 0}


@pytest.fixture(scope="session")
def matrices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, Matrix]]]:
    """A checkpoint of each family, the same prompts for all, and the reference's tokens."""
    made = {}
    for family, make in FAMILIES.items():
        path = make(tmp_path_factory.mktemp("families") / family)
        made[family] = (path, make_matrix(path, 384, LENGTHS))
    yield made
    near_ties = [line for _, matrix in made.values() for line in matrix.near_ties]
    print(f"\nnear-ties counted as equal: {len(near_ties)}", *near_ties, sep="\n  ")


async def check_every_situation(service: Deployment, matrix: Matrix, run: str) -> None:
    """Cold, full and partial hit, streamed, and all of them among 31 others."""
    async with AsyncClient(service.address) as client:
        for length, prompt in matrix.prompts.items():
            salt = f"{run} {length}"
            for situation in ("cold", "full prefix hit"):
                whole = await client.generate(prompt, cache_salt=salt, **FIELDS)
                matrix.check(length, whole.token_ids, f"{run}, {situation}")
            joined = await streamed(client, prompt, cache_salt=salt, **FIELDS)
            assert (joined.token_ids, joined.text) == (whole.token_ids, whole.text)
            assert joined.finish_reason == whole.finish_reason == "length"
            salt = f"{run} {length} half"
            await client.generate(prompt[: max(1, length // 2)], cache_salt=salt, **FIELDS)
            partial = await client.generate(prompt, cache_salt=salt, **FIELDS)
            matrix.check(length, partial.token_ids, f"{run}, partial prefix hit")
        lengths = [LENGTHS[i % len(LENGTHS)] for i in range(32)]
        prompts = [matrix.prompts[length] for length in lengths]
        for salt in (f"{run} crowd", f"{run} crowd again"):
            answers = await crowd(client, prompts, cache_salt=salt, **FIELDS)
            for length, answer in zip(lengths, answers, strict=True):
                matrix.check(length, answer.token_ids, f"{run}, among 31 others")


@pytest.mark.parametrize(
    ("family", "transport"),
    [
        *((family, "shared_memory") for family in FAMILIES),
        ("llama", "bytes"),
        *(pytest.param(f, "bytes", marks=pytest.mark.slow) for f in FAMILIES if f != "llama"),
    ],
)
async def test_every_family_is_exact_however_its_blocks_travel(
    matrices: dict[str, tuple[Path, Matrix]], family: str, transport: str
) -> None:
    path, matrix = matrices[family]
    settings = {"transport": transport}
    async with running_fleet(path, prefill=settings, decode=settings | ALWAYS_PULL) as fleet:
        await check_every_situation(fleet, matrix, f"{family}, {transport}")
        await check_alive_and_quiet(fleet, path)
        prefill, decode = await fleet.all_workers()
        assert prefill.counters.blocks_transferred == decode.counters.blocks_transferred > 0
        assert decode.counters.digest_mismatches == 0
        assert decode.counters.prompt_tokens_computed == 0, "a prompt was not handed over"


async def test_octavo_up_is_exact_with_short_tails_computed_by_the_decode_worker(
    service: Service, matrices: dict[str, tuple[Path, Matrix]]
) -> None:
    before = await service.workers("decode")
    await check_every_situation(service, matrices["llama"][1], service.address)
    for worker, earlier in zip(await service.workers("decode"), before, strict=True):
        assert worker.counters.blocks_transferred > earlier.counters.blocks_transferred
        assert worker.counters.prompt_tokens_computed > earlier.counters.prompt_tokens_computed


@pytest.mark.parametrize(
    ("family", "preemption"),
    [
        *((family, "recompute") for family in FAMILIES),
        ("llama", "swap"),
        *(pytest.param(f, "swap", marks=pytest.mark.slow) for f in FAMILIES if f != "llama"),
    ],
)
async def test_preempted_sequences_are_exact(
    matrices: dict[str, tuple[Path, Matrix]], family: str, preemption: str
) -> None:
    """Each begins with 1 or 2 of 24 blocks and grows to 9: three that run together must exceed it.

    Prompts of 65 tokens are handed over and, once preempted, the decode worker's own to bring back.
    """
    path, matrix = matrices[family]
    longer = {
        length: reference_run(path, matrix.prompts[length], NUM_GROWN, ignore_eos=True)
        for length in (15, 17, 65)
    }
    matrix = Matrix(matrix.prompts, longer)
    lengths = [15, 17, 65] * 6
    fields = FIELDS | {"max_tokens": NUM_GROWN}
    async with running_fleet(path, decode={"num_blocks": 24, "preemption": preemption}) as fleet:
        async with AsyncClient(fleet.address, timeout_s=100) as client:
            answers = await asyncio.gather(
                *(
                    client.generate(matrix.prompts[length], cache_salt=f"{i}", **fields)
                    for i, length in enumerate(lengths)  # no two share a block
                )
            )
        for length, answer in zip(lengths, answers, strict=True):
            matrix.check(length, answer.token_ids, f"{family}, preempted")
        (decode,) = await fleet.workers("decode")
        assert decode.counters.preemptions > 0, "the pool was not small enough to preempt"
        assert (decode.counters.preemptions_swap > 0) == (preemption == "swap")
        await check_alive_and_quiet(fleet, path)
