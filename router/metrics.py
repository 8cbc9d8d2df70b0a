"""A router's figures, read from those who keep them when Prometheus asks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.registry import Collector

from octavo import __version__
from octavo.grammar.counters import GrammarCounters
from octavo.metrics.families import Families, Labelled
from octavo.metrics.grammar_figures import grammar_figures
from octavo.registry.index import PrefixIndex
from octavo.router.generation import Generator
from octavo.router.request_counts import RequestCounts
from octavo.router.worker import Role, Worker
from octavo.router.workers import Workers

WORKER_STATES = ("ready", "draining", "stuck")


@dataclass(slots=True, eq=False)
class RouterMetrics(Collector):
    """What one router knows."""

    model_name: str
    requests: RequestCounts
    generator: Generator
    workers: Workers
    grammars: GrammarCounters
    index: PrefixIndex | None  # None: no Redis

    def collect(self) -> Iterator[Metric]:
        families = Families(model_name=self.model_name)
        yield self._build()
        yield from self._now(families)
        yield from self._counts(families)
        yield from self._tokens(families)
        yield from self._lengths(families)
        yield from self._times(families)
        yield from grammar_figures(families, self.grammars)
        if self.index is not None:
            yield from _redis(families, self.index)

    def _build(self) -> Metric:
        families = Families(
            model_name=self.model_name,
            role="router",
            version=__version__,
            worker_id="",
            dtype="",
            quantization="",
        )
        return families.gauge("octavo_build_info", "What runs here; always 1.", 1)

    def _now(self, families: Families) -> Iterator[Metric]:
        gauge, admission = families.gauge, self.generator.admission
        yield gauge(
            "octavo_router_ready",
            "1 while a prefill and a decode worker take work.",
            self.workers.is_ready,
        )
        yield gauge(
            "octavo_router_requests_running", "Requests under way.", self.generator.num_running
        )
        yield gauge(
            "octavo_router_queued_tokens",
            "Prompt tokens of requests without a first token.",
            admission.num_queued_tokens,
        )
        yield gauge(
            "octavo_router_max_queued_tokens",
            "How many may wait; beyond it requests are RESOURCE_EXHAUSTED.",
            admission.max_queued_tokens,
        )
        counts = Counter((w.facts.role.value, _state(w)) for w in self.workers.connected)
        by_state: Labelled[float] = {
            (r.value, state): counts[r.value, state] for r in Role for state in WORKER_STATES
        }
        yield gauge("octavo_workers", "Connected workers.", by_state, ("role", "state"))

    def _counts(self, families: Families) -> Iterator[Metric]:
        yield families.counter(
            "octavo_requests_total",
            "Requests by how they ended, as a gRPC status.",
            {(*key,): count for key, count in list(self.requests.ended.items())},
            ("protocol", "status"),
        )
        yield families.counter(
            "vllm:request_success_total",
            "Samples by why their output ended.",
            {(reason,): count for reason, count in self.requests.finished.items()},
            ("finished_reason",),
        )

    def _tokens(self, families: Families) -> Iterator[Metric]:
        counts, counter = self.requests, families.counter
        completed = self.generator.activity.ended["completed"]
        yield counter(
            "vllm:prompt_tokens_total",
            "Prompt tokens of requests that got a first token.",
            counts.prompt_tokens,
        )
        yield counter(
            "vllm:prompt_tokens_cached_total",
            "Of requests that ended well: found in the cache of whoever computed the prompt.",
            completed.cached_prompt_tokens,
        )
        yield counter(
            "octavo_prompt_tokens_by_source_total",
            "Prompt tokens of requests that ended well by where a worker got their KV ready.",
            {
                ("prefill_worker_cache",): completed.cached_on_prefill_worker,
                ("decode_worker_cache",): completed.cached_on_decode_worker,
                ("transfer",): completed.transferred_prompt_tokens,
            },
            ("source",),
        )
        yield counter(
            "vllm:generation_tokens_total", "Output tokens of all samples.", counts.generated_tokens
        )

    def _lengths(self, families: Families) -> Iterator[Metric]:
        counts = self.requests
        yield families.histogram(
            "vllm:request_prompt_tokens", "Of a request.", counts.prompt_lengths
        )
        yield families.histogram(
            "vllm:request_generation_tokens", "Of a request, all samples.", counts.output_lengths
        )

    def _times(self, families: Families) -> Iterator[Metric]:
        times, histogram = self.requests.times, families.histogram
        yield histogram(
            "vllm:time_to_first_token_seconds",
            "From arrival at the router to the first token.",
            times.first_token,
        )
        yield histogram(
            "vllm:request_queue_time_seconds",
            "From arrival at the router to the start of the prefill.",
            times.queue,
        )
        yield histogram(
            "vllm:request_prefill_time_seconds",
            "From the start of the prefill to the first token.",
            times.prefill,
        )
        yield histogram(
            "vllm:request_decode_time_seconds", "From the first token to the end.", times.decode
        )
        yield histogram(
            "vllm:request_time_per_output_token_seconds",
            "The decode time over the tokens behind the first.",
            times.per_output_token,
        )
        yield histogram(
            "vllm:e2e_request_latency_seconds",
            "From arrival at the router to the end.",
            times.total,
        )


def _state(worker: Worker) -> str:
    if worker.takes_work:
        return "ready"
    return "stuck" if worker.is_stuck else "draining"


def _redis(families: Families, index: PrefixIndex) -> Iterator[Metric]:
    counters = index.counters
    yield families.counter(
        "octavo_redis_lookups_total", "Prompts whose blocks were looked up.", counters.lookups
    )
    yield families.counter(
        "octavo_redis_lookup_events_total",
        "What came of look-ups: several things, or nothing found.",
        {
            ("hit",): counters.hits,
            ("over_budget",): counters.over_budget,
            ("skipped",): counters.skipped,
            ("failed",): counters.failures,
            ("malformed",): counters.malformed,
        },
        ("event",),
    )
    yield families.histogram(
        "octavo_redis_lookup_time_seconds",
        "What a request waited for a look-up, up to the budget.",
        counters.wait_s,
    )
    yield families.histogram(
        "octavo_redis_call_time_seconds", "Of one call of Redis.", index.call_s
    )
    yield families.gauge(
        "octavo_redis_breaker_open",
        "1 while Redis is not asked since it keeps failing.",
        index.breaker_is_open,
    )
