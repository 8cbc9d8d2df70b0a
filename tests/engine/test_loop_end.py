"""What ends streams of an engine before their time: bad logits, its death, its loop's closing."""

import asyncio

import pytest

from engine.conftest import TIMEOUT_S, HeldRunner, collect, num_held
from engine.counting import CountingRunner, make_sequence
from octavo.engine import loop as loop_module
from octavo.engine.errors import EngineDied, InvalidLogits
from octavo.engine.step_plan import StepPlan


class FailingRunner(CountingRunner):
    def execute(self, plan: StepPlan) -> list[int | InvalidLogits]:
        raise MemoryError("no room for activations")


async def test_when_the_engine_dies_every_stream_and_call_says_so(make_loop) -> None:
    async with make_loop(FailingRunner()) as loop:
        seqs = [make_sequence(seq_id, [3]) for seq_id in "ab"]
        ends = await asyncio.gather(*(collect(loop, s) for s in seqs), return_exceptions=True)
        assert all(isinstance(end, EngineDied) for end in ends)
        assert "MemoryError: no room for activations" in str(ends[0])
        assert loop.failed.is_set()
        with pytest.raises(EngineDied):
            await loop.call(lambda: None)
        with pytest.raises(EngineDied):
            await collect(loop, make_sequence("c", [3]))


async def test_a_call_that_waits_when_the_engine_dies_raises(make_loop) -> None:
    async with make_loop() as loop, asyncio.timeout(TIMEOUT_S):
        loop.post(lambda: (_ for _ in ()).throw(RuntimeError("posted")))  # type: ignore[arg-type]
        with pytest.raises(EngineDied):
            await loop.call(lambda: None)


class PoisonedRunner(CountingRunner):
    def execute(self, plan: StepPlan) -> list[int | InvalidLogits]:
        token_ids = super().execute(plan)
        is_bad = [seq.seq_id == "bad" for seq in plan.sampled]
        return [
            InvalidLogits("the greatest logit of sequence bad is nan") if bad else token_id
            for bad, token_id in zip(is_bad, token_ids, strict=True)
        ]


async def test_invalid_logits_end_one_stream_and_not_its_neighbour(make_loop) -> None:
    async with make_loop(PoisonedRunner()) as loop:
        good, bad = await asyncio.gather(
            collect(loop, make_sequence("good", [3])),
            collect(loop, make_sequence("bad", [4])),
            return_exceptions=True,
        )
        assert isinstance(bad, InvalidLogits)
        assert len(good) == 4
        assert await num_held(loop) == 0


async def test_closing_the_loop_ends_what_still_runs(make_loop) -> None:
    async with make_loop() as loop:
        stream_context = loop.lease(make_sequence("a", [3] * 6, is_pulled=True))
        stream = await stream_context.__aenter__()
        await anext(stream)
    with pytest.raises(EngineDied, match="closed"):
        await anext(stream)
    await stream_context.__aexit__(None, None, None)


async def test_a_step_that_hangs_does_not_keep_the_loop_from_closing(
    make_loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_module, "STOP_TIMEOUT_S", 0.2)
    runner = HeldRunner()
    async with asyncio.timeout(TIMEOUT_S):
        async with make_loop(runner) as loop:
            stream_context = loop.lease(make_sequence("a", [3] * 6))
            stream = await stream_context.__aenter__()
            await asyncio.to_thread(runner.is_held.wait, TIMEOUT_S)
        with pytest.raises(EngineDied, match="closed"):
            await anext(stream)
        await stream_context.__aexit__(None, None, None)
        assert "did not end within 0.2 s" in caplog.text
        runner.let_go.set()
        await asyncio.to_thread(loop._thread.join)
