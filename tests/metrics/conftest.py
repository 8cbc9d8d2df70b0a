"""A whole service in this process whose parts all show their metrics."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from checkpoints import tiny_llama
from end_to_end.fleet import Fleet, running_fleet
from metrics.figures import Scrape

ANY_PORT = {"metrics_address": "127.0.0.1:0"}


@dataclass(frozen=True)
class Watched:
    """A fleet of one pair, and its ports."""

    fleet: Fleet

    async def router(self) -> Scrape:
        assert self.fleet.router.metrics_port
        return await Scrape.of(self.fleet.router.metrics_port)

    async def prefill(self) -> Scrape:
        assert self.fleet.prefills[0].metrics_port
        return await Scrape.of(self.fleet.prefills[0].metrics_port)

    async def decode(self) -> Scrape:
        assert self.fleet.decodes[0].metrics_port
        return await Scrape.of(self.fleet.decodes[0].metrics_port)

    async def texts(self) -> list[str]:
        """As they are told."""
        fleet = self.fleet
        ports = [each.metrics_port for each in (fleet.router, *fleet.prefills, *fleet.decodes)]
        async with httpx.AsyncClient() as client:
            urls = [f"http://127.0.0.1:{port}/metrics" for port in ports]
            return [(await client.get(url)).text for url in urls]

    async def by_role(self) -> dict[str, Scrape]:
        return {
            "router": await self.router(),
            "prefill": await self.prefill(),
            "decode": await self.decode(),
        }


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def watched(llama: Path) -> AsyncIterator[Watched]:
    # Every prompt is pulled, and every token has a step of its own.
    decode = ANY_PORT | {"local_prefill_max_tokens": 0, "max_draft_tokens": 0}
    async with running_fleet(llama, prefill=ANY_PORT, decode=decode, **ANY_PORT) as fleet:
        yield Watched(fleet)
