"""A worker's figures, read from those who keep them when Prometheus asks.

Load is the engine's own newest sample and sums are plain integers, so nobody waits: a scrape
during a step sees what the step before left.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.registry import Collector

from octavo.engine.engine import Engine
from octavo.engine.load import Counters
from octavo.engine.loop import EngineLoop
from octavo.engine.token_gaps import TokenGaps
from octavo.grammar.counters import GrammarCounters
from octavo.internal.v1alpha1 import worker_pb2
from octavo.metrics.families import Families, Labelled
from octavo.metrics.grammar_figures import grammar_figures
from octavo.metrics.registry import registry_of
from octavo.metrics.server import running_metrics
from octavo.transfer.counters import TransferCounters
from octavo.worker.config import WorkerConfig
from octavo.worker.leg_times import LegTimes
from octavo.worker.open_streams import OpenStreams
from octavo.worker.start import CacheNews

TRANSPORT = ("transport",)


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerMetrics(Collector):
    """Of either role; token_gaps are a decode worker's."""

    facts: worker_pb2.GetWorkerResponse
    engine: Engine
    loop: EngineLoop
    streams: OpenStreams
    transfers: TransferCounters
    grammars: GrammarCounters
    times: LegTimes
    news: CacheNews
    token_gaps: TokenGaps | None = None

    @property
    def _is_decode(self) -> bool:
        return self.facts.role == worker_pb2.WORKER_ROLE_DECODE

    def serving(self, config: WorkerConfig) -> AbstractContextManager[int | None]:
        """Serve inside the block, if that is wanted; yields the port."""
        if config.metrics_address is None or not config.serves_metrics:
            return nullcontext()
        return running_metrics(registry_of(self), config.metrics_address, config.internal_tls)

    def collect(self) -> Iterator[Metric]:
        role = "decode" if self._is_decode else "prefill"
        families = Families(model_name=self.facts.model, role=role)
        yield self._build(role)
        yield from self._load(families)
        yield from _sums(families, self.engine.counters())
        yield from self._times(families)
        yield from self._transfers(families)
        yield from self._grammars(families)
        yield from self._redis(families)

    def _build(self, role: str) -> Metric:
        layout = self.facts.layout
        families = Families(
            model_name=self.facts.model,
            role=role,
            version=self.facts.version,
            worker_id=self.facts.worker.worker_id,
            dtype=layout.dtype,
            quantization=layout.quantization,
        )
        return families.gauge("octavo_build_info", "What runs here; always 1.", 1)

    def _load(self, families: Families) -> Iterator[Metric]:
        load, gauge = self.loop.load, families.gauge
        blocks = load.blocks
        usage = blocks.held / blocks.total
        yield gauge(
            "vllm:num_requests_running",
            "Sequences in the batch, those whose KV is on its way included.",
            load.running_sequences,
        )
        yield gauge(
            "vllm:num_requests_waiting",
            "Sequences that wait to run, those preempted included.",
            load.waiting_sequences,
        )
        yield gauge(
            "octavo_num_requests_preempted",
            "Sequences that gave up their blocks and wait to go on.",
            load.preempted_sequences,
        )
        yield gauge(
            "octavo_prefill_queued_tokens",
            "Known tokens, admitted or waiting, whose KV is not computed yet.",
            load.waiting_prefill_tokens,
        )
        by_state: Labelled[float] = {
            ("held",): blocks.held,
            ("cached",): blocks.cached,
            ("free",): blocks.free,
        }
        yield gauge("octavo_kv_blocks", "Blocks of the pool by state.", by_state, ("state",))
        yield gauge(
            "octavo_kv_pool_bytes",
            "Memory of all blocks.",
            blocks.total * self.engine.kv_cache.block_bytes,
        )
        yield gauge("vllm:kv_cache_usage_perc", "Share of blocks held, 0 to 1.", usage)
        yield gauge(
            "octavo_kv_cache_usage_ratio",
            "vllm:kv_cache_usage_perc under a name that autoscalers take.",
            usage,
        )
        yield gauge(
            "octavo_draining",
            "1 while no new request is taken, before the end.",
            self.streams.is_draining,
        )

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
        transfers = self.transfers
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


def _sums(families: Families, counters: Counters) -> Iterator[Metric]:
    counter = families.counter
    yield counter("octavo_engine_requests_total", "Sequences added.", counters.requests)
    yield counter("octavo_engine_steps_total", "Steps.", counters.steps)
    yield counter(
        "octavo_engine_prompt_tokens_total",
        "Prompt tokens by where their KV came from; pulled ones are neither.",
        {
            ("computed",): counters.prompt_tokens_computed,
            ("cached",): counters.prompt_tokens_cached,
        },
        ("source",),
    )
    yield counter(
        "octavo_engine_generated_tokens_total",
        "Tokens booked here; a first token counts at the prefill and at the decode worker.",
        counters.tokens_generated,
    )
    yield counter(
        "vllm:num_preemptions_total",
        "Sequences that had to give up their blocks.",
        {
            ("recompute",): counters.preemptions_recompute,
            ("swap",): counters.preemptions_swap,
        },
        ("kind",),
    )
    yield counter(
        "octavo_kv_swapped_blocks_total",
        "Blocks copied between the pool and host memory.",
        {("out",): counters.blocks_swapped_out, ("in",): counters.blocks_swapped_in},
        ("direction",),
    )
    yield counter(
        "octavo_kv_blocks_stored_total", "Blocks the prefix cache took.", counters.blocks_cached
    )
    yield counter(
        "octavo_kv_key_collisions_total",
        "Look-ups that found other tokens under the same key.",
        counters.key_collisions,
    )
    yield counter(
        "octavo_kv_slot_steps_total",
        "Slots in held blocks, summed over steps: utilisation is live over allocated.",
        {("live",): counters.live_slot_steps, ("allocated",): counters.allocated_slot_steps},
        ("state",),
    )
    yield counter(
        "octavo_kv_shared_block_steps_total",
        "Blocks that sharing saves, summed over steps.",
        counters.shared_block_steps,
    )
    yield counter(
        "vllm:spec_decode_num_draft_tokens_total",
        "Tokens guessed by prompt lookup.",
        counters.draft_tokens_proposed,
    )
    yield counter(
        "vllm:spec_decode_num_accepted_tokens_total",
        "Those of them that the model drew.",
        counters.draft_tokens_accepted,
    )
