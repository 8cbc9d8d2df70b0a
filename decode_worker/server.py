"""Wires a decode worker and runs it until a signal.

DecodeServicer --+-- EngineLoop --> Engine -- CacheNews --> WorkerAnnouncer --> Redis
                 +-- PromptPuller --> Peers (channels, segments), CopyThread
WorkerServicer --+
                 +-- WorkerMetrics --> metrics port
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from octavo.decode_worker.config import DecodeConfig
from octavo.decode_worker.prompt_pull import PromptPuller
from octavo.decode_worker.servicer import DecodeServicer
from octavo.engine.engine import Engine
from octavo.engine.loop import EngineLoop
from octavo.engine.token_gaps import TokenGaps
from octavo.grammar.grammars import CompiledGrammars
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.server import Server
from octavo.transfer.copy_thread import CopyThread
from octavo.transfer.peers import Peers
from octavo.transfer.receiver import ReceivePath
from octavo.worker.adapters import WorkerAdapters
from octavo.worker.attempts import Attempts
from octavo.worker.grammar import worker_grammars
from octavo.worker.metrics import WorkerMetrics
from octavo.worker.open_streams import OpenStreams
from octavo.worker.sequence_spec import InputLimits
from octavo.worker.servicer import WorkerServicer
from octavo.worker.start import CacheNews, announced, facts_of, load_engine, serve_until_end

logger = logging.getLogger(__name__)

SERVICES = (
    "octavo.internal.v1alpha1.DecodeService",
    "octavo.internal.v1alpha1.WorkerService",
)


@dataclass(slots=True)
class DecodeWorker:
    """A worker that listens; not ready until `serve_until_end` says so."""

    engine: Engine
    loop: EngineLoop
    server: Server
    streams: OpenStreams
    facts: worker_pb2.GetWorkerResponse
    path: ReceivePath
    attempts: Attempts[None]
    metrics_port: int | None = None


async def serve(config: DecodeConfig) -> None:
    """Run a decode worker until SIGTERM or SIGINT."""
    engine = await asyncio.to_thread(load_engine, config)
    async with running_decode_worker(config, engine) as worker:
        logger.info("%s listens at %s", worker.facts.worker.worker_id, worker.facts.worker.address)
        await serve_until_end(
            worker.server, worker.loop, worker.streams, worker.attempts, config.drain_timeout_s
        )


@asynccontextmanager
async def running_decode_worker(
    config: DecodeConfig, engine: Engine
) -> AsyncIterator[DecodeWorker]:
    """All parts of a decode worker, running and listening."""
    facts = facts_of(config, engine, "decode")
    facts.local_prefill_max_tokens = config.local_prefill_max_tokens
    facts.serves_decode_many = True
    streams, news, server = OpenStreams(), CacheNews(), Server(SERVICES)
    with closing(CopyThread()) as copies:
        path = ReceivePath(engine.kv_cache, facts.layout, copies)
        peers = Peers(facts.layout, config.internal_tls, config.transport)
        gaps = TokenGaps() if config.serves_metrics else None
        async with (
            worker_grammars(config, engine) as grammars,
            EngineLoop(engine, news, gaps) as loop,
        ):
            puller = _puller(config, engine, loop, path, peers)
            decodes = _decode_servicer(config, engine, loop, puller, streams, grammars)
            adapters = WorkerAdapters(engine.adapters, config.lora_root, loop.tell_load)
            workers = WorkerServicer(facts, engine, loop, streams, path.counters, adapters)
            worker_pb2_grpc.add_DecodeServiceServicer_to_server(decodes, server.grpc)
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(workers, server.grpc)
            port = await server.start(config.listen_address, tls=config.internal_tls)
            facts.worker.address = config.reachable_address(port)
            metrics = WorkerMetrics(workers, grammars.counters, decodes.times, news, gaps)
            try:
                with metrics.serving(config) as metrics_port:
                    async with announced(config, facts, engine, loop) as news.announcer:
                        yield DecodeWorker(
                            *(engine, loop, server, streams, facts, path, decodes.attempts),
                            metrics_port,
                        )
            finally:
                await server.grpc.stop(0)
                await peers.close()


def _puller(
    config: DecodeConfig, engine: Engine, loop: EngineLoop, path: ReceivePath, peers: Peers
) -> PromptPuller:
    return PromptPuller(
        loop=loop,
        scheduler=engine.scheduler,
        path=path,
        peers=peers,
        vocab_size=engine.model_config.vocab_size,
        max_request_s=config.max_request_s,
    )


def _decode_servicer(
    config: DecodeConfig,
    engine: Engine,
    loop: EngineLoop,
    puller: PromptPuller,
    streams: OpenStreams,
    grammars: CompiledGrammars,
) -> DecodeServicer:
    return DecodeServicer(
        loop=loop,
        scheduler=engine.scheduler,
        limits=InputLimits(
            vocab_size=engine.model_config.vocab_size,
            max_prompt_context_tokens=engine.max_model_len,
            max_context_tokens=engine.max_model_len,
            eos_token_ids=frozenset(engine.model_config.eos_token_ids),
            adapters=engine.adapters,
        ),
        eos_token_ids=frozenset(engine.model_config.eos_token_ids),
        local_prefill_max_tokens=config.local_prefill_max_tokens,
        puller=puller,
        attempts=Attempts(_no_state, config.max_request_s),
        streams=streams,
        grammars=grammars,
    )


def _no_state() -> None:
    """A decode attempt has one stream: there is nothing to share."""
