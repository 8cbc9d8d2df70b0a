"""Clients that leave and deadlines that pass: blocks are back on both workers within a second."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest

from end_to_end.fleet import Fleet, running_fleet
from end_to_end.prompts import GREEDY, check_alive_and_quiet, prompt_of
from octavo.client import AsyncClient, OctavoError

pytestmark = pytest.mark.asyncio(loop_scope="session")

BACK_S = 1.0
SLOW_PREFILL = {"max_num_batched_tokens": 16}
NUM_TOKENS = 40


async def at_once(fleet: Fleet) -> None:
    """The request may not even have left."""
    await asyncio.sleep(0)


async def when_decode_reserved(fleet: Fleet) -> None:
    while not fleet.decodes[0].loop.load.blocks.held:
        await asyncio.sleep(0)


async def when_prefill_runs(fleet: Fleet) -> None:
    while not fleet.prefills[0].loop.load.running_sequences:
        await asyncio.sleep(0)


async def when_blocks_move(fleet: Fleet) -> None:
    before = fleet.decodes[0].path.counters.blocks
    while fleet.decodes[0].path.counters.blocks < before + 4:
        await asyncio.sleep(0)


MOMENTS: list[Callable[[Fleet], Coroutine[Any, Any, None]]] = [
    at_once,
    when_decode_reserved,
    when_prefill_runs,
    when_blocks_move,
]


@pytest.mark.parametrize("is_stream", [False, True], ids=["unary", "streamed"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_client_that_leaves_before_the_first_token_gives_all_blocks_back(
    llama: Path, moment: Callable[[Fleet], Coroutine[Any, Any, None]], is_stream: bool
) -> None:
    async with (
        running_fleet(llama, prefill=SLOW_PREFILL) as fleet,
        AsyncClient(fleet.address) as client,
    ):
        for i in range(5):
            prompt = prompt_of(1200, seed=f"left {moment.__name__} {i}")
            work: Coroutine[Any, Any, object]
            if is_stream:
                work = client.stream(prompt, max_tokens=NUM_TOKENS, **GREEDY).__anext__()
            else:
                work = client.generate(prompt, max_tokens=NUM_TOKENS, **GREEDY)
            asked = asyncio.ensure_future(work)
            async with asyncio.timeout(10):
                await moment(fleet)
            asked.cancel()
            await fleet.wait_until_quiet(BACK_S)
            await asyncio.wait({asked})
        await check_alive_and_quiet(fleet, llama)


@pytest.mark.parametrize("num_read", [1, 2, 10, NUM_TOKENS - 1, NUM_TOKENS])
async def test_a_client_that_leaves_while_it_reads_gives_all_blocks_back(
    llama: Path, num_read: int
) -> None:
    async with running_fleet(llama) as fleet, AsyncClient(fleet.address) as client:
        for length in (20, 300):
            stream = client.stream(prompt_of(length), max_tokens=NUM_TOKENS, **GREEDY)
            count = 0
            while count < num_read:
                count += len((await anext(stream)).token_ids)
            stream.close()
            await fleet.wait_until_quiet(BACK_S)
        await check_alive_and_quiet(fleet, llama)


async def test_a_hundred_clients_that_leave_at_random_moments(llama: Path) -> None:
    draw = random.Random(3)
    pool = {"num_blocks": 96}
    async with (
        running_fleet(llama, prefill=pool | SLOW_PREFILL, decode=pool) as fleet,
        AsyncClient(fleet.address) as client,
    ):

        async def come_and_go(index: int) -> None:
            prompt = prompt_of(draw.randrange(1, 400), seed=index)
            try:
                async with asyncio.timeout(draw.uniform(0.0, 0.8)):
                    await client.generate(prompt, max_tokens=NUM_TOKENS, **GREEDY)
            except TimeoutError:
                pass

        await asyncio.gather(*(come_and_go(index) for index in range(100)))
        await fleet.wait_until_quiet(BACK_S)
        await check_alive_and_quiet(fleet, llama)


@pytest.mark.parametrize("timeout_s", [0.001, 0.05, 0.3])
async def test_a_deadline_ends_the_request_everywhere(llama: Path, timeout_s: float) -> None:
    async with (
        running_fleet(llama, prefill=SLOW_PREFILL) as fleet,
        AsyncClient(fleet.address) as client,
    ):
        with pytest.raises(OctavoError) as expired:
            await client.generate(prompt_of(2000), max_tokens=2000, timeout_s=timeout_s, **GREEDY)
        assert expired.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await fleet.wait_until_quiet(BACK_S)
        await check_alive_and_quiet(fleet, llama)


async def test_a_request_without_a_deadline_gets_the_routers(llama: Path) -> None:
    async with (
        running_fleet(llama, max_request_s=0.2) as fleet,
        AsyncClient(fleet.address) as client,
    ):
        with pytest.raises(OctavoError, match=r"0\.2") as expired:
            await client.generate(prompt_of(20), max_tokens=4000, **GREEDY)
        assert expired.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await fleet.wait_until_quiet(BACK_S)
