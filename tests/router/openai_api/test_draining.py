"""A router that is to end: HTTP takes nothing new, and what is open may end."""

import asyncio
from contextlib import suppress

import httpx
import pytest

from octavo.router.model import ServedModel
from octavo.rpc.errors import NoWorker
from router.openai_api.conftest import COMPLETION, StartDoor, events_of, says

BODY = COMPLETION | {"stream": True}


async def test_an_open_stream_ends_well_and_nothing_new_is_taken(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, "It is well.")) as door:
        may_go_on = door.fleet.decode.hold_before(2)
        async with door.client.stream("POST", "/v1/completions", json=BODY) as reply:
            draining = asyncio.create_task(door.fleet.router.drain(10))
            async with asyncio.timeout(5):
                with pytest.raises(httpx.ConnectError):
                    while True:
                        # A connection that was waiting to be accepted is closed unanswered.
                        with suppress(httpx.RemoteProtocolError, httpx.ReadError):
                            async with httpx.AsyncClient(base_url=door.url) as other:
                                await other.get("/health")
            assert not draining.done()
            may_go_on.set()
            events = events_of(await reply.aread())
        assert "".join(event["choices"][0]["text"] for event in events) == "It is well."
        async with asyncio.timeout(5):
            await draining
        await door.fleet.quiet()


async def test_a_stream_that_outlives_the_grace_is_told_why(start_door: StartDoor) -> None:
    async with start_door([5, 6, 7]) as door:
        door.fleet.decode.hold_before(2)
        async with door.client.stream("POST", "/v1/completions", json=BODY) as reply:
            draining = asyncio.create_task(door.fleet.router.drain(10))
            await asyncio.sleep(0)
            door.fleet.router.generator.end_all(NoWorker("this router is shutting down"))
            assert b'"error":{"message":"this router is shutting down"' in await reply.aread()
        async with asyncio.timeout(5):
            await draining


async def test_after_the_grace_connections_are_cut(start_door: StartDoor) -> None:
    async with start_door([5, 6, 7]) as door:
        door.fleet.decode.hold_before(2)
        async with door.client.stream("POST", "/v1/completions", json=BODY) as reply:
            async with asyncio.timeout(5):
                await door.fleet.router.drain(0.2)
            with pytest.raises(httpx.HTTPError):
                await reply.aread()
        await door.fleet.quiet()
