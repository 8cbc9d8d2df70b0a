"""What both kinds of worker do from their settings to their last stream."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.block_key import BlockKey
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.errors import EngineDied
from octavo.engine.loop import EngineLoop
from octavo.internal.v1alpha1 import worker_pb2
from octavo.registry.announcer import WorkerAnnouncer
from octavo.registry.connection import RedisSettings
from octavo.registry.records import Role, WorkerRecord, new_epoch
from octavo.rpc.errors import NoWorker
from octavo.rpc.server import Server, serve_until_signal
from octavo.transfer.layout import PROTOCOL_VERSION
from octavo.worker.attempts import Attempts
from octavo.worker.config import WorkerConfig
from octavo.worker.cores import cores_of
from octavo.worker.liveness import watch_engine
from octavo.worker.open_streams import OpenStreams
from octavo.worker.self_test import check_engine

logger = logging.getLogger(__name__)

# Open streams have ended by then; this is for load streams to take their last sample.
STOP_GRACE_S = 2.0

# For how long the event loop may keep the interpreter while a step waits for it between kernels.
# Python's own 5 ms would make the step wait until all tokens are handed out.
SWITCH_INTERVAL_S = 50e-6

_ROLES: dict[Role, worker_pb2.WorkerRole] = {
    "prefill": worker_pb2.WORKER_ROLE_PREFILL,
    "decode": worker_pb2.WORKER_ROLE_DECODE,
}


def load_engine(config: WorkerConfig) -> Engine:
    """Take the cores, load the model, compile the kernels, see that it computes.

    This process is a worker from now on.

    Raises:
        SelfTestFailed: it computes something else; nobody must hear of this worker.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    engine = build_engine(config.engine_config(), cores=cores_of(config))
    check_engine(engine)
    return engine


def facts_of(config: WorkerConfig, engine: Engine, role: Role) -> worker_pb2.GetWorkerResponse:
    """What GetWorker says and what does not change; the address follows once it is bound."""
    layout = engine.layout
    return worker_pb2.GetWorkerResponse(
        worker=worker_pb2.WorkerRef(
            worker_id=config.worker_id or f"{role}-{socket.gethostname()}-{os.getpid()}",
            epoch=new_epoch(),
        ),
        role=_ROLES[role],
        model=Path(config.model).name.removesuffix(".gguf"),
        layout=worker_pb2.KvLayout(
            protocol_version=PROTOCOL_VERSION,
            model_fingerprint=layout.model_fingerprint,
            dtype=layout.dtype,
            num_layers=layout.num_layers,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            block_size=layout.block_size,
            key_algorithm=layout.key_algorithm,
            quantization=layout.quantization,
        ),
        max_context_tokens=engine.max_model_len,
        vocab_size=engine.model_config.vocab_size,
        eos_token_ids=engine.model_config.eos_token_ids,
        version=__version__,
    )


class CacheNews:
    """Passes block keys from the engine to the announcer, which starts later and ends sooner."""

    def __init__(self) -> None:
        self.announcer: WorkerAnnouncer | None = None  # None: nobody is to be told

    def __call__(self, stored: list[BlockKey], removed: list[BlockKey]) -> None:
        if self.announcer is not None:
            self.announcer.publish(stored, removed)


@asynccontextmanager
async def announced(
    config: WorkerConfig, facts: worker_pb2.GetWorkerResponse, engine: Engine, loop: EngineLoop
) -> AsyncIterator[WorkerAnnouncer | None]:
    """Be known in Redis, if there is one, inside the block; yields what takes cache changes."""
    if config.redis_url is None:
        yield None
        return
    record = WorkerRecord(
        worker_id=facts.worker.worker_id,
        role="prefill" if facts.role == worker_pb2.WORKER_ROLE_PREFILL else "decode",
        address=facts.worker.address,
        epoch=facts.worker.epoch,
        model=facts.model,
        fingerprint=facts.layout.model_fingerprint,
        layout=facts.layout.SerializeToString(deterministic=True).hex(),
        capacity_blocks=engine.scheduler.pool.num_total,
        max_context_tokens=facts.max_context_tokens,
    )

    async def snapshot() -> list[BlockKey]:
        return await loop.call(engine.scheduler.prefix_cache.keys)

    async with WorkerAnnouncer(RedisSettings(config.redis_url), record, snapshot) as announcer:
        yield announcer


async def serve_until_end(
    server: Server,
    loop: EngineLoop,
    streams: OpenStreams,
    attempts: Attempts[Any],
    drain_timeout_s: float,
) -> None:
    """Be ready until a signal comes, then let open streams finish; what outlives that is told so.

    Raises:
        EngineDied: nothing can be served any more.
    """

    await server.set_ready(True)
    on_drain = partial(drain, server, streams, attempts, drain_timeout_s)
    serving = asyncio.create_task(serve_until_signal(server, STOP_GRACE_S, on_drain))
    failing = asyncio.create_task(loop.failed.wait())
    watching = asyncio.create_task(watch_engine(loop, server))
    try:
        await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await server.drain(STOP_GRACE_S)
            raise EngineDied("the engine died; see above")
        await serving
    finally:
        for task in (serving, failing, watching):
            task.cancel()


async def drain(
    server: Server, streams: OpenStreams, attempts: Attempts[Any], drain_timeout_s: float
) -> None:
    """Not ready at once and no new stream; open ones may end within the time, then are ended."""
    await server.set_ready(False)
    streams.close()
    try:
        async with asyncio.timeout(drain_timeout_s):
            await streams.wait_until_idle()
    except TimeoutError:
        logger.warning("%d streams did not end in time", streams.num_open)
        attempts.end_all(NoWorker("this worker ended before the request did"))
