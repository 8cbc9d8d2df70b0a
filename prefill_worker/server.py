"""Wires a prefill worker and runs it until a signal.

PrefillServicer --+                                      +-- WorkerAnnouncer --> Redis
                  +-- EngineLoop --> Engine -- CacheNews-+
PullServicer -----+-- SendPath --> StagingSegment, CopyThread
WorkerServicer ---+
                  +-- WorkerMetrics --> metrics port
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from octavo.engine.engine import Engine
from octavo.engine.loop import EngineLoop
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.prefill_worker.config import PrefillConfig
from octavo.prefill_worker.handover import Handover, Handovers
from octavo.prefill_worker.pull_servicer import PullServicer
from octavo.prefill_worker.servicer import PrefillServicer
from octavo.rpc.server import Server
from octavo.transfer.copy_thread import CopyThread
from octavo.transfer.namespace import shared_memory_namespace
from octavo.transfer.segment import SegmentError, StagingSegment, sweep_dead_segments
from octavo.transfer.sender import SendPath, blocks_per_chunk
from octavo.worker.adapters import WorkerAdapters
from octavo.worker.grammar import worker_grammars
from octavo.worker.metrics import WorkerMetrics
from octavo.worker.open_streams import OpenStreams
from octavo.worker.sequence_spec import InputLimits
from octavo.worker.servicer import WorkerServicer
from octavo.worker.start import CacheNews, announced, facts_of, load_engine, serve_until_end

logger = logging.getLogger(__name__)

SERVICES = (
    "octavo.internal.v1alpha1.PrefillService",
    "octavo.internal.v1alpha1.KvTransferService",
    "octavo.internal.v1alpha1.WorkerService",
)


@dataclass(slots=True)
class PrefillWorker:
    """A worker that listens; not ready until `serve_until_end` says so."""

    engine: Engine
    loop: EngineLoop
    server: Server
    streams: OpenStreams
    facts: worker_pb2.GetWorkerResponse
    path: SendPath
    pulls: PullServicer
    attempts: Handovers
    metrics_port: int | None = None


async def serve(config: PrefillConfig) -> None:
    """Run a prefill worker until SIGTERM or SIGINT."""
    engine = await asyncio.to_thread(load_engine, config)
    async with running_prefill_worker(config, engine) as worker:
        logger.info("%s listens at %s", worker.facts.worker.worker_id, worker.facts.worker.address)
        await serve_until_end(
            worker.server, worker.loop, worker.streams, worker.attempts, config.drain_timeout_s
        )


@asynccontextmanager
async def running_prefill_worker(
    config: PrefillConfig, engine: Engine
) -> AsyncIterator[PrefillWorker]:
    """All parts of a prefill worker, running and listening."""
    facts = facts_of(config, engine, "prefill")
    facts.serves_prefill_many = True
    handovers = Handovers(Handover, config.max_request_s)
    streams, news = OpenStreams(), CacheNews()
    with _send_path(config, engine, facts) as path:
        async with worker_grammars(config, engine) as grammars, EngineLoop(engine, news) as loop:
            server = Server(SERVICES)
            prefills = PrefillServicer(
                loop=loop,
                limits=_input_limits(config, engine),
                block_size=engine.layout.block_size,
                eos_token_ids=frozenset(engine.model_config.eos_token_ids),
                handovers=handovers,
                streams=streams,
                grammars=grammars,
            )
            pulls = PullServicer(facts.worker.epoch, facts.layout, path, handovers, streams)
            adapters = WorkerAdapters(engine.adapters, config.lora_root, loop.tell_load)
            workers = WorkerServicer(facts, engine, loop, streams, path.counters, adapters)
            worker_pb2_grpc.add_PrefillServiceServicer_to_server(prefills, server.grpc)
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(workers, server.grpc)
            server.grpc.add_generic_rpc_handlers((pulls.handler(),))
            port = await server.start(config.listen_address, tls=config.internal_tls)
            facts.worker.address = config.reachable_address(port)
            metrics = WorkerMetrics(workers, grammars.counters, prefills.times, news)
            try:
                with metrics.serving(config) as metrics_port:
                    async with announced(config, facts, engine, loop) as news.announcer:
                        yield PrefillWorker(
                            *(engine, loop, server, streams, facts, path, pulls, handovers),
                            metrics_port,
                        )
            finally:
                await server.grpc.stop(0)


@contextmanager
def _send_path(
    config: PrefillConfig, engine: Engine, facts: worker_pb2.GetWorkerResponse
) -> Iterator[SendPath]:
    """The segment, if it is wanted and there is room, and the thread that fills it."""
    sweep_dead_segments()
    segment = _make_segment(config, engine, facts.worker.epoch)
    if segment is not None:
        facts.shared_memory.namespace_id = shared_memory_namespace()
        facts.shared_memory.name = segment.name
        facts.shared_memory.size_bytes = segment.size_bytes
    copies = CopyThread()
    try:
        yield SendPath(engine.kv_cache, copies, segment)
    finally:
        copies.close()
        if segment is not None:
            segment.unlink()


def _make_segment(config: PrefillConfig, engine: Engine, epoch: int) -> StagingSegment | None:
    if config.transport == "bytes":
        return None
    block_bytes = engine.kv_cache.block_bytes
    slot_bytes = blocks_per_chunk(block_bytes) * block_bytes
    try:
        return StagingSegment(epoch, slot_bytes, max(2, config.segment_bytes // slot_bytes))
    except SegmentError as error:
        if config.transport == "shared_memory":
            raise
        logger.warning("blocks will go in messages: %s", error)
        return None


def _input_limits(config: PrefillConfig, engine: Engine) -> InputLimits:
    """Prompts must fit this pool; what comes after them need not, it lives elsewhere."""
    positions = engine.model_config.max_position_embeddings
    return InputLimits(
        vocab_size=engine.model_config.vocab_size,
        max_prompt_context_tokens=engine.max_model_len,
        max_context_tokens=min(positions, config.max_model_len or positions),
        eos_token_ids=frozenset(engine.model_config.eos_token_ids),
        adapters=engine.adapters,
    )
