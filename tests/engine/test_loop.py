"""The engine on its thread: streams, leases, calls, load and cache changes."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from engine.conftest import TIMEOUT_S, HeldRunner, collect, num_held
from engine.counting import CountingRunner, make_sequence
from octavo.block_key import BlockKey
from octavo.engine import loop as loop_module
from octavo.engine.cores import AnyCore


async def test_streams_of_one_batch_end_each_with_its_own_tokens(make_loop) -> None:
    async with make_loop() as loop:
        seqs = [make_sequence(str(n), [3] * n, max_tokens=n) for n in range(1, 7)]
        outputs = await asyncio.gather(*(collect(loop, seq) for seq in seqs))
        for n, own in zip(range(1, 7), outputs, strict=True):
            assert [t for output in own for t in output.token_ids] == list(range(n, 2 * n))
        assert await num_held(loop) == 0


async def test_leaving_a_lease_early_frees_its_blocks(make_loop) -> None:
    async with make_loop() as loop, asyncio.timeout(TIMEOUT_S):
        async with loop.lease(make_sequence("a", [3] * 5, max_tokens=50)) as stream:
            async for _ in stream:
                break
        assert await num_held(loop) == 0
        assert loop._streams == {}


async def test_a_leased_sequence_holds_its_blocks_until_the_lease_ends(make_loop) -> None:
    async with make_loop() as loop, asyncio.timeout(TIMEOUT_S):
        seq = make_sequence("a", [3] * 10, max_tokens=1, is_leased=True)
        async with loop.lease(seq) as stream:
            computed = [output.num_computed_tokens async for output in stream]
            assert computed == [0, 8, 10]
            assert await num_held(loop) == 3
        assert await num_held(loop) == 0


async def test_a_pulled_sequence_reserves_waits_and_goes_on(make_loop) -> None:
    runner = CountingRunner()
    async with make_loop(runner) as loop, asyncio.timeout(TIMEOUT_S):
        seq = make_sequence("a", [3] * 6, max_tokens=3, is_pulled=True)
        scheduler = loop._engine.scheduler
        async with loop.lease(seq) as stream:
            reserved = await anext(stream)
            assert len(reserved.block_ids) == 2
            runner.fill(list(reserved.block_ids), seq.token_ids, range(6))
            loop.post(partial(scheduler.end_pull, "a"))
            loop.post(partial(scheduler.join, "a", 9))
            assert [output.token_ids async for output in stream] == [(9,), (7,), (8,)]
        assert await num_held(loop) == 0


class LendingCore(AnyCore):
    lends = True


async def test_while_more_fill_than_run_a_lent_core_is_not_taken_back_for_a_step(
    make_loop, monkeypatch
) -> None:
    monkeypatch.setattr(loop_module, "JOIN_WAIT_S", 2 * TIMEOUT_S)
    runner = CountingRunner()
    async with make_loop(runner) as loop, asyncio.timeout(TIMEOUT_S):
        loop._engine.cores = LendingCore()
        scheduler = loop._engine.scheduler
        seqs = [make_sequence(name, [3], max_tokens=3, is_pulled=True) for name in "abc"]
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(loop.lease(seq)) for seq in seqs]
            for stream in streams:
                await anext(stream)
            for seq, stream in zip(seqs[:2], streams[:2], strict=True):
                runner.fill(seq.block_ids, seq.token_ids, range(1))
                loop.post(partial(scheduler.end_pull, seq.seq_id))
                num_steps = await loop.call(lambda: scheduler.totals.steps)
                loop.post(partial(scheduler.join, seq.seq_id, 9))
                if seq is seqs[0]:  # one runs and two fill
                    await asyncio.sleep(0.05)
                    assert await loop.call(lambda: scheduler.totals.steps) == num_steps
                else:
                    assert (await anext(stream)).token_ids == (9,)


async def test_a_sequence_that_can_never_run_is_refused_on_entry(make_loop) -> None:
    async with make_loop() as loop:
        with pytest.raises(ValueError, match="token_ids must be 0 to 383, got 999"):
            await collect(loop, make_sequence("a", [999]))
        with pytest.raises(ValueError, match="the context of 64"):
            await collect(loop, make_sequence("a", [3] * 60, max_tokens=5))
        async with loop.lease(make_sequence("a", [3], max_tokens=9)):
            with pytest.raises(ValueError, match="in the engine already"):
                await collect(loop, make_sequence("a", [3]))
        assert len(await collect(loop, make_sequence("a", [3]))) == 4


async def test_an_id_whose_blocks_are_still_written_is_refused_and_the_engine_goes_on(
    make_loop,
) -> None:
    async with make_loop() as loop, asyncio.timeout(TIMEOUT_S):
        async with loop.lease(make_sequence("a", [3] * 6, is_pulled=True)) as stream:
            await anext(stream)
        with pytest.raises(ValueError, match="in the engine already"):
            await collect(loop, make_sequence("a", [3]))
        loop.post(partial(loop._engine.scheduler.end_pull, "a"))
        assert len(await collect(loop, make_sequence("a", [3]))) == 4


async def test_a_call_returns_or_raises_and_the_engine_goes_on(make_loop) -> None:
    async with make_loop() as loop, asyncio.timeout(TIMEOUT_S):
        assert await loop.call(lambda: 41 + 1) == 42
        with pytest.raises(ZeroDivisionError):
            await loop.call(lambda: 1 // 0)
        assert len(await collect(loop, make_sequence("a", [3]))) == 4


async def test_cache_changes_are_told_on_the_event_loop(make_loop) -> None:
    stored: list[BlockKey] = []
    removed: list[BlockKey] = []

    def on_change(new: list[BlockKey], gone: list[BlockKey]) -> None:
        asyncio.get_running_loop()
        stored.extend(new)
        removed.extend(gone)

    async with make_loop(num_blocks=4, on_cache_change=on_change) as loop:
        await collect(loop, make_sequence("a", list(range(3, 15)), max_tokens=1))
        assert len(stored) == 3
        await collect(loop, make_sequence("b", list(range(30, 42)), max_tokens=1))
        assert set(removed) < set(stored)
        keys = await loop.call(loop._engine.scheduler.prefix_cache.keys)
        assert set(keys) == set(stored) - set(removed)


async def test_load_follows_the_engine(make_loop) -> None:
    async with make_loop() as loop, asyncio.timeout(TIMEOUT_S):
        assert loop.load.blocks.held == 0
        async with loop.lease(make_sequence("a", [3] * 6, is_pulled=True)):
            while (await loop.load_change()).blocks.held == 0:
                pass
            assert loop.load.running_sequences == 1
            loop.post(partial(loop._engine.scheduler.end_pull, "a"))
        while loop.load.blocks.held > 0:
            await loop.load_change()
        assert loop.load.running_sequences == 0


async def test_an_engine_whose_work_is_blocked_still_shows_steps(make_loop) -> None:
    seq = make_sequence("a", [3] * 6, is_pulled=True)
    async with asyncio.timeout(TIMEOUT_S), make_loop() as loop, loop.lease(seq) as stream:
        await anext(stream)
        steps = loop.load.steps
        while loop.load.steps < steps + 2:
            await loop.load_change()


async def test_work_shows_in_the_load_before_its_first_step_ends(make_loop) -> None:
    runner = HeldRunner()
    seq = make_sequence("a", [3] * 6)
    async with asyncio.timeout(TIMEOUT_S), make_loop(runner) as loop, loop.lease(seq):
        while (await loop.load_change()).waiting_sequences == 0:
            pass
        assert loop.load.steps == 0
        runner.let_go.set()


@pytest.mark.parametrize("kind", ["is_leased", "is_pulled"])
async def test_admission_is_told_before_the_step_ends(make_loop, kind: str) -> None:
    runner = HeldRunner()
    seq = make_sequence("a", [3] * 6, max_tokens=1, **{kind: True})
    async with asyncio.timeout(TIMEOUT_S), make_loop(runner) as loop, loop.lease(seq) as stream:
        admitted = await anext(stream)
        assert len(admitted.block_ids) == 2 and admitted.num_cached_tokens == 0
        runner.let_go.set()
        loop.post(partial(loop._engine.scheduler.end_pull, "a"))
