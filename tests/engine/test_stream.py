"""A reader that takes outputs as they come gets each once, in order, whoever is awake."""

import asyncio
from itertools import count

import pytest

from octavo.engine.errors import EngineDied
from octavo.engine.sequence import FinishReason, SequenceOutput
from octavo.engine.stream import SequenceStream

TIMEOUT_S = 10


def output(index: int, finish_reason: FinishReason | None = None) -> SequenceOutput:
    return SequenceOutput("a", index, (index,), index, finish_reason)


async def test_taken_outputs_wake_nobody_and_the_refused_one_comes_back() -> None:
    stream, taken = SequenceStream(), []

    def take(one: SequenceOutput) -> bool:
        if one.finish_reason is not None:
            return False
        taken.append(one.first_index)
        return True

    async with asyncio.timeout(TIMEOUT_S):
        reader = asyncio.create_task(stream.not_taken(take))
        await asyncio.sleep(0)
        for index in range(5):
            stream.put(output(index))
            assert taken == list(range(index + 1))  # at once, with no turn of the loop
        assert not reader.done()
        stream.put(output(5, FinishReason.LENGTH))
        assert (await reader).first_index == 5
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_outputs_stay_in_order_when_some_are_refused_and_the_reader_is_late() -> None:
    stream, seen = SequenceStream(), []

    def take(one: SequenceOutput) -> bool:
        if one.first_index % 3 == 2:
            return False
        seen.append(one.first_index)
        return True

    async def read() -> None:
        while True:
            one = await stream.not_taken(take)
            await asyncio.sleep(0)  # as a write that has to wait
            seen.append(one.first_index)
            if one.finish_reason is not None:
                return

    async with asyncio.timeout(TIMEOUT_S):
        reader = asyncio.create_task(read())
        for index in range(40):
            stream.put(output(index, FinishReason.STOP if index == 39 else None))
            if index % 7 == 0:
                await asyncio.sleep(0)
        await reader
    assert seen == list(range(40))


async def test_a_failure_reaches_a_reader_that_takes() -> None:
    stream = SequenceStream()
    numbers = count()
    async with asyncio.timeout(TIMEOUT_S):
        reader = asyncio.create_task(stream.not_taken(lambda one: next(numbers) >= 0))
        await asyncio.sleep(0)
        stream.put(output(0))
        stream.fail(EngineDied("gone"))
        with pytest.raises(EngineDied):
            await reader
