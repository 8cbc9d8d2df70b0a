"""A whole service in this process: a router and workers, each on a port of its own.

The servers are those of `octavo up`, without processes to start, so a test can afford pools of its
own. There is no Redis: prompts are placed by load alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.decode_worker.config import DecodeConfig
from octavo.decode_worker.server import DecodeWorker, running_decode_worker
from octavo.engine.build import build_engine
from octavo.prefill_worker.config import PrefillConfig
from octavo.prefill_worker.server import PrefillWorker, running_prefill_worker
from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.router.server import Router, running_router
from service import Deployment

SMALL: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_blocks": 256}


@dataclass(frozen=True)
class Fleet(Deployment):
    """The parts, for tests that look inside."""

    router: Router
    prefills: list[PrefillWorker]
    decodes: list[DecodeWorker]

    def worker_addresses(self, role: str) -> list[str]:
        workers = self.prefills if role == "prefill" else self.decodes
        return [worker.facts.worker.address for worker in workers]


@asynccontextmanager
async def running_fleet(
    model: Path,
    num_prefills: int = 1,
    num_decodes: int = 1,
    *,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    **router: Any,
) -> AsyncIterator[Fleet]:
    """A service of `model`, ready to answer; the dicts change the workers' settings."""
    async with AsyncExitStack() as stack:
        prefills, decodes = [], []
        for index in range(num_prefills):
            p = PrefillConfig(
                model=str(model), worker_id=f"prefill-{index}", **SMALL | (prefill or {})
            )
            p_engine = build_engine(p.engine_config())
            prefills.append(await stack.enter_async_context(running_prefill_worker(p, p_engine)))
        for index in range(num_decodes):
            d = DecodeConfig(
                model=str(model), worker_id=f"decode-{index}", **SMALL | (decode or {})
            )
            d_engine = build_engine(d.engine_config())
            decodes.append(await stack.enter_async_context(running_decode_worker(d, d_engine)))
        config = RouterConfig(
            model=str(model),
            listen_address="127.0.0.1:0",
            prefill_address=tuple(w.facts.worker.address for w in prefills),
            decode_address=tuple(w.facts.worker.address for w in decodes),
            **router,
        )
        served = ServedModel.load(config.model, config.model_name)
        running = await stack.enter_async_context(running_router(config, served))
        await _wait_until_connected(running, num_prefills, num_decodes)
        yield Fleet(running.address, running, prefills, decodes)


async def _wait_until_connected(router: Router, num_prefills: int, num_decodes: int) -> None:
    workers = router.workers
    async with asyncio.timeout(20):
        while len(workers.prefills) < num_prefills or len(workers.decodes) < num_decodes:
            changed = workers.changed
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), 0.1)
