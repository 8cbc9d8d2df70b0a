"""A router's wiring, from settings to a served port.

config --> ServedModel --+--> RequestReader --+               +--> InferenceServicer --> gRPC port
addresses, DNS, Redis ---+--> Workers         +--> Inference --+
Redis -----------------------> RouteFinder ---+               +--> http.app ----------> HTTP port
all of these <-- RouterMetrics --> /metrics of the HTTP port, metrics port
"""

import asyncio
import gc
import logging
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.metrics.registry import registry_of
from octavo.registry.connection import RedisSettings
from octavo.registry.directory import WorkerDirectory
from octavo.registry.index import PrefixIndex
from octavo.registry.records import WorkerRecord
from octavo.router.adapters import Adapters
from octavo.router.admission import Admission
from octavo.router.background import Background, background
from octavo.router.config import RouterConfig
from octavo.router.discovery import watch_names
from octavo.router.doors import write_addresses
from octavo.router.fleet import FleetServicer
from octavo.router.generation import Generator
from octavo.router.grammar import GrammarReader, router_grammars
from octavo.router.grpc_door import Services, open_grpc
from octavo.router.http_door import HttpParts, open_http
from octavo.router.inference import Inference
from octavo.router.metrics import RouterMetrics
from octavo.router.metrics_door import open_metrics
from octavo.router.model import ServedModel
from octavo.router.pace import Pace
from octavo.router.request import RequestReader
from octavo.router.route import RouteFinder
from octavo.router.secret import (
    SECRET_BYTES,
    CacheSecret,
    read_or_create,
    share_through_redis,
)
from octavo.router.workers import Workers
from octavo.rpc.api_keys import KeyRing
from octavo.rpc.errors import NoWorker
from octavo.rpc.server import Server, serve_until_signal

if TYPE_CHECKING:
    from octavo.router.http.server import HttpServer

logger = logging.getLogger(__name__)

TOKENIZER_THREADS = 2
LAST_WORDS_S = 0.5  # for statuses to go out before connections are closed


@dataclass(frozen=True, slots=True)
class Router:
    """A router that listens."""

    server: Server
    address: str  # with the port that it got
    workers: Workers
    admission: Admission
    generator: Generator
    http: "HttpServer | None" = None
    metrics_port: int | None = None

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; what is open may end within the grace."""
        drains = [door.drain(grace_s) for door in (self.server, self.http) if door is not None]
        await asyncio.gather(*drains)

    async def end_requests_in(self, grace_s: float) -> None:
        """Requests that outlive the grace get a status of ours, not a broken connection."""
        patience_s = max(grace_s - LAST_WORDS_S, 0.0)
        error = NoWorker("this router is shutting down; try again on another one")
        asyncio.get_running_loop().call_later(patience_s, self.generator.end_all, error)


async def serve(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    model = await asyncio.to_thread(
        ServedModel.load, config.model, config.model_name, config.tool_call_format
    )
    async with running_router(config, model) as router:
        gc.freeze()  # a full collection over the libraries' objects stops every stream
        grace_s = config.drain_timeout_s
        await serve_until_signal(router, grace_s, partial(router.end_requests_in, grace_s))


@asynccontextmanager
async def running_router(config: RouterConfig, model: ServedModel) -> AsyncIterator[Router]:
    """Everything that `serve` runs, for as long as the block lasts."""
    async with AsyncExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(TOKENIZER_THREADS, "tokenizer"))
        grammars = await stack.enter_async_context(router_grammars(model))
        tasks = await stack.enter_async_context(background())
        workers = _known_workers(config, model, stack, tasks)
        secret, index = await _open_redis(config, model, workers, stack, tasks)
        routes = _route_finder(config, workers, index)
        adapters, admission = Adapters(workers), Admission(config.max_queued_tokens)
        generator = Generator(model, routes, admission, Pace(config.stream_interval_s))
        reader = RequestReader(
            model,
            threads,
            GrammarReader(model, grammars),
            max_context_tokens=partial(workers.context_of, model.max_context_tokens),
            group_key_of=secret.group_key_of,
            find_adapter=adapters.find,
        )
        inference = Inference(
            model,
            reader,
            generator,
            adapters,
            workers,
            max_request_s=config.max_request_s,
            log_prompts=config.log_prompts,
        )
        keys = KeyRing(config.api_key_file) if config.api_key_file else None
        fleet = FleetServicer(model.name, workers, generator, inference.counts)
        services = Services(inference, adapters, fleet)
        server, address = await open_grpc(config, services, keys, stack)
        metrics = RouterMetrics(
            model.name, inference.counts, generator, workers, grammars.counters, index
        )
        registry = registry_of(metrics)
        http = await open_http(config, HttpParts(inference, server, keys, registry), stack)
        metrics_port = open_metrics(config, registry, stack)
        tasks.start(_report_readiness(server, workers))
        if config.address_file is not None:
            write_addresses(config.address_file, address, http.address if http else None)
        yield Router(server, address, workers, admission, generator, http, metrics_port)


def _known_workers(
    config: RouterConfig, model: ServedModel, stack: AsyncExitStack, tasks: Background
) -> Workers:
    """The workers of the settings; Redis may add others."""
    workers = Workers(
        vocab_size=model.vocab_size,
        model_fingerprint=model.fingerprint,
        load_interval_s=config.load_interval_s,
        stuck_after_s=config.stuck_after_s,
        tls=config.internal_tls,
    )
    stack.push_async_callback(workers.close)
    names = config.prefill_address + config.decode_address
    tasks.start(watch_names(names, workers, config.dns_interval_s))
    return workers


def _route_finder(config: RouterConfig, workers: Workers, index: PrefixIndex | None) -> RouteFinder:
    return RouteFinder(
        workers,
        index,
        sequence_weight=config.decode_sequence_weight,
        local_prefill_max_tokens=config.local_prefill_max_tokens,
    )


async def _open_redis(
    config: RouterConfig,
    model: ServedModel,
    workers: Workers,
    stack: AsyncExitStack,
    tasks: Background,
) -> tuple[CacheSecret, PrefixIndex | None]:
    """The secret, and the prefix index if there is a Redis; from there come workers too."""
    secret_file = Path(config.cache_secret_file) if config.cache_secret_file else None
    secret = CacheSecret(
        read_or_create(secret_file) if secret_file else secrets.token_bytes(SECRET_BYTES)
    )
    if config.redis_url is None:
        return secret, None
    if model.fingerprint is None:
        raise ValueError(f"{config.model} has no weights, by whose fingerprint Redis lists workers")
    settings = RedisSettings(config.redis_url)

    def on_change(records: list[WorkerRecord]) -> None:
        workers.want("registry", frozenset(record.address for record in records))

    directory = WorkerDirectory(settings, [model.fingerprint], on_change=on_change)
    await stack.enter_async_context(directory)
    if secret_file is None:
        tasks.start(share_through_redis(secret, settings, model.fingerprint))
    index = PrefixIndex(settings, model.fingerprint, budget_s=config.lookup_budget_s)
    return secret, await stack.enter_async_context(index)


async def _report_readiness(server: Server, workers: Workers) -> None:
    """Ready while at least one prefill and one decode worker are connected."""
    while True:
        changed = workers.changed
        await server.set_ready(workers.is_ready)
        await changed.wait()
