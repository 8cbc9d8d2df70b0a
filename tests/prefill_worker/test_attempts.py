"""Attempts of a request: who is let in, who is ended, and what a leg's end means to the other."""

import asyncio
import contextlib

import pytest

from octavo.rpc.errors import Aborted, Duplicate, Expired, NoWorker, RequestError
from octavo.transfer.request_key import RequestKey
from octavo.worker.attempts import Attempts
from octavo.worker.stream_scope import StreamScope


def new_attempts(max_request_s: float = 60.0) -> Attempts[list[str]]:
    return Attempts(list, max_request_s)


async def hold(attempts: Attempts[list[str]], key: RequestKey, leg: str) -> None:
    async with attempts.leg(key, leg) as attempt:
        attempt.join(leg)
        await asyncio.Event().wait()


async def started(attempts: Attempts[list[str]], key: RequestKey, leg: str) -> "asyncio.Task[None]":
    task = asyncio.create_task(hold(attempts, key, leg))
    await asyncio.sleep(0)
    return task


async def test_a_higher_attempt_waits_until_the_lower_one_is_gone() -> None:
    attempts, order = new_attempts(), []

    async def lower() -> None:
        async with attempts.leg(RequestKey("r", 1), "a") as attempt:
            attempt.join("a")
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                order.append("lower gave back")

    first = asyncio.create_task(lower())
    await asyncio.sleep(0)
    async with attempts.leg(RequestKey("r", 2), "a"):
        order.append("higher runs")
    assert order == ["lower gave back", "higher runs"]
    with pytest.raises(Aborted, match="attempt 2"):
        await first


async def test_older_and_repeated_legs_are_refused() -> None:
    attempts = new_attempts()
    task = await started(attempts, RequestKey("r", 3), "a")
    for key, leg, error in (
        (RequestKey("r", 2), "a", Aborted),
        (RequestKey("r", 2), "b", Aborted),
        (RequestKey("r", 3), "a", Duplicate),
    ):
        with pytest.raises(error):
            async with attempts.leg(key, leg):
                raise AssertionError("it was let in")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    for number in (2, 3):
        with pytest.raises(Aborted, match="late"):
            async with attempts.leg(RequestKey("r", number), "a"):
                raise AssertionError("it was let in")
    async with attempts.leg(RequestKey("r", 4), "a"):
        pass
    assert len(attempts) == 0


async def test_a_leg_that_never_joined_leaves_room_for_another() -> None:
    attempts, key = new_attempts(), RequestKey("r", 1)
    with pytest.raises(RequestError):
        async with attempts.leg(key, "b"):
            raise RequestError("it did not fit")
    other = await started(attempts, key, "a")
    with pytest.raises(RequestError):
        async with attempts.leg(key, "b"):
            raise RequestError("it did not fit")
    async with attempts.leg(key, "b"):
        assert not other.done()
    other.cancel()


async def test_a_joined_leg_that_breaks_ends_the_other() -> None:
    attempts, key = new_attempts(), RequestKey("r", 1)
    one, two = [await started(attempts, key, leg) for leg in ("a", "b")]
    one.cancel()
    with pytest.raises(NoWorker, match="a stream of request r/1 broke"):
        await two
    assert one.cancelled()


async def test_a_leg_may_not_last_for_ever() -> None:
    attempts = new_attempts(max_request_s=0.02)
    with pytest.raises(Expired, match=r"0\.02 s"):
        await hold(attempts, RequestKey("r", 1), "a")


async def test_a_scope_that_was_ended_before_it_began_raises_at_once() -> None:
    scope = StreamScope()
    scope.end(NoWorker("too late"))
    with pytest.raises(NoWorker), scope:
        raise AssertionError("it began")


async def test_a_write_goes_out_whole_before_its_scope_ends() -> None:
    scope, written, gate = StreamScope(), [], asyncio.Event()

    async def write() -> None:
        await gate.wait()
        written.append(1)

    async def handler() -> None:
        with scope:
            await scope.whole(write())
            written.append(2)

    task = asyncio.create_task(handler())
    await asyncio.sleep(0)
    scope.end(NoWorker("ended"))
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(NoWorker):
        await task
    assert written == [1] and task.cancelling() == 0


async def test_a_caller_that_left_is_a_cancellation_even_if_the_scope_was_ended() -> None:
    scope = StreamScope()

    async def handler() -> None:
        with scope:
            await asyncio.Event().wait()

    task = asyncio.create_task(handler())
    await asyncio.sleep(0)
    scope.end(NoWorker("ended"))
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
