"""A router with an HTTP port over scripted workers, and a raw client of it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from octavo.router.model import ServedModel
from router.conftest import Fleet, StartFleet
from scripted_workers import EOS

pytest.importorskip("starlette", reason="octavo[http] is not installed")


@dataclass
class Door:
    """Where a fleet answers HTTP, and an httpx client of it."""

    fleet: Fleet
    url: str
    client: httpx.AsyncClient

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def chat(self, **body: Any) -> dict[str, Any]:
        reply = await self.post("/v1/chat/completions", **CHAT | body)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    async def complete(self, **body: Any) -> dict[str, Any]:
        reply = await self.post("/v1/completions", **COMPLETION | body)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    async def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Every event of a stream that ends well, without the last one."""
        reply = await self.post(path, **body, stream=True)
        assert reply.status_code == 200, reply.text
        return events_of(reply.content)


CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "How is it?"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "How is it?", "max_tokens": 100}
StartDoor = Callable[..., AbstractAsyncContextManager[Door]]


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Read server-sent events strictly: `data: JSON`, an empty line, and [DONE] at the end."""
    *events, last, nothing = body.split(b"\n\n")
    assert (last, nothing) == (b"data: [DONE]", b"")
    assert all(event.startswith(b"data: {") and b"\n" not in event for event in events)
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def says(model: ServedModel, text: str) -> list[int]:
    """Output tokens of a text that the model ends itself."""
    return [*model.tokenizer.encode(text, add_special_tokens=False), EOS]


@pytest.fixture
def start_door(start_fleet: StartFleet) -> StartDoor:
    @asynccontextmanager
    async def start(token_ids: list[int], **settings: Any) -> AsyncIterator[Door]:
        # Every prompt goes through a prefill worker, who notes what it was asked for.
        settings = {"local_prefill_max_tokens": 0, "http_address": "127.0.0.1:0"} | settings
        async with start_fleet(token_ids, **settings) as fleet:
            assert fleet.router.http is not None
            url = f"http://{fleet.router.http.address}"
            async with httpx.AsyncClient(base_url=url, timeout=10) as client:
                yield Door(fleet, url, client)

    return start
