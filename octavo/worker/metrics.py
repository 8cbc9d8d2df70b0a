"""A worker's figures, read from those who keep them when Prometheus asks.

Load is the engine's own newest sample and sums are plain integers, so nobody waits: a scrape
during a step sees what the step before left.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.registry import Collector

from octavo.engine.token_gaps import TokenGaps
from octavo.grammar.counters import GrammarCounters
from octavo.internal.v1alpha1 import worker_pb2
from octavo.metrics.families import Families
from octavo.metrics.grammar_figures import grammar_figures
from octavo.metrics.registry import registry_of
from octavo.metrics.server import running_metrics
from octavo.worker.config import WorkerConfig
from octavo.worker.engine_figures import engine_figures
from octavo.worker.leg_times import LegTimes
from octavo.worker.servicer import WorkerServicer
from octavo.worker.start import CacheNews

TRANSPORT = ("transport",)


@dataclass(slots=True, eq=False)
class WorkerMetrics(Collector):
    """Of either role; token_gaps are a decode worker's."""

    worker: WorkerServicer
    grammars: GrammarCounters
    times: LegTimes
    news: CacheNews
    token_gaps: TokenGaps | None = None

    @property
    def _is_decode(self) -> bool:
        return self.worker.facts.role == worker_pb2.WORKER_ROLE_DECODE

    def serving(self, config: WorkerConfig) -> AbstractContextManager[int | None]:
        """Serve inside the block, if that is wanted; yields the port."""
        if config.metrics_address is None or not config.serves_metrics:
            return nullcontext()
        return running_metrics(
            registry_of(self),
            config.metrics_address,
            config.internal_tls,
            config.metrics_address_file,
        )

    def collect(self) -> Iterator[Metric]:
        role = "decode" if self._is_decode else "prefill"
        families = Families(model_name=self.worker.facts.model, role=role)
        yield self._build(role)
        yield families.gauge(
            "octavo_draining",
            "1 while no new request is taken, before the end.",
            self.worker.streams.is_draining,
        )
        yield from engine_figures(families, self.worker.engine, self.worker.loop.load)
        yield from self._times(families)
        yield from self._transfers(families)
        yield from self._grammars(families)
        yield from self._redis(families)

    def _build(self, role: str) -> Metric:
        layout = self.worker.facts.layout
        families = Families(
            model_name=self.worker.facts.model,
            role=role,
            version=self.worker.facts.version,
            worker_id=self.worker.facts.worker.worker_id,
            dtype=layout.dtype,
            quantization=layout.quantization,
        )
        return families.gauge("octavo_build_info", "What runs here; always 1.", 1)

    def _times(self, families: Families) -> Iterator[Metric]:
        if self.token_gaps is not None:
            yield families.histogram(
                "vllm:inter_token_latency_seconds",
                "Between two steps that gave a sequence tokens, at the decode worker.",
                self.token_gaps.seconds,
            )
        yield families.histogram(
            "octavo_worker_queue_time_seconds",
            "From a request's arrival at this worker to its admission.",
            self.times.queue,
        )
        if not self._is_decode:
            yield families.histogram(
                "octavo_worker_prefill_time_seconds",
                "From admission to the first token.",
                self.times.prefill,
            )

    def _transfers(self, families: Families) -> Iterator[Metric]:
        transfers = self.worker.transfers
        moved = {("shared_memory",): transfers.shared_memory, ("bytes",): transfers.messages}
        yield families.counter(
            "octavo_kv_transfer_blocks_total",
            "Blocks handed over (prefill) or received and verified (decode).",
            {key: each.blocks for key, each in moved.items()},
            TRANSPORT,
        )
        yield families.counter(
            "octavo_kv_transfer_bytes_total",
            "Their bytes.",
            {key: each.bytes for key, each in moved.items()},
            TRANSPORT,
        )
        if not self._is_decode:
            return
        yield families.counter(
            "octavo_kv_transfers_total",
            "Pulls of a prompt's blocks by how they ended.",
            {(*key, how): n for key, each in moved.items() for how, n in each.ended.items()},
            (*TRANSPORT, "outcome"),
        )
        yield families.histogram(
            "octavo_kv_transfer_time_seconds",
            "From the first block asked for to the last one verified, of pulls that ended well.",
            {key: each.seconds for key, each in moved.items()},
            TRANSPORT,
        )
        yield families.counter(
            "octavo_kv_digest_mismatches_total",
            "Blocks whose bytes failed their check.",
            transfers.digest_mismatches,
        )

    def _grammars(self, families: Families) -> Iterator[Metric]:
        yield from grammar_figures(families, self.grammars)
        yield families.histogram(
            "octavo_grammar_compile_time_seconds",
            "To compile a grammar for one request, once it is known to compile.",
            self.grammars.compile_s,
        )

    def _redis(self, families: Families) -> Iterator[Metric]:
        announcer = self.news.announcer
        if announcer is None:
            return
        yield families.gauge(
            "octavo_redis_registered", "1 while Redis lists this worker.", announcer.is_registered
        )
        yield families.counter(
            "octavo_redis_failures_total",
            "Calls of Redis that failed, or gave what cannot be.",
            announcer.counters.failures,
        )
        yield families.histogram(
            "octavo_redis_call_time_seconds", "Of one call of Redis.", announcer.call_s
        )
