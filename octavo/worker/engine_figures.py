"""An engine's load, and what it has done since its start."""

from collections.abc import Iterator

from prometheus_client import Metric

from octavo.engine.engine import Engine
from octavo.engine.load import Counters, Load
from octavo.metrics.families import Families, Labelled


def engine_figures(families: Families, engine: Engine, load: Load) -> Iterator[Metric]:
    """load: a sample of it."""
    counters = engine.counters()
    yield from _sequences(families, load)
    yield from _pool(families, load, engine.kv_cache.block_bytes)
    yield from _work(families, counters)
    yield from _preemptions(families, counters)
    yield from _blocks(families, counters)


def _sequences(families: Families, load: Load) -> Iterator[Metric]:
    gauge = families.gauge
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


def _pool(families: Families, load: Load, block_bytes: int) -> Iterator[Metric]:
    blocks, gauge = load.blocks, families.gauge
    by_state: Labelled[float] = {
        ("held",): blocks.held,
        ("cached",): blocks.cached,
        ("free",): blocks.free,
    }
    usage = blocks.held / blocks.total
    yield gauge("octavo_kv_blocks", "Blocks of the pool by state.", by_state, ("state",))
    yield gauge("octavo_kv_pool_bytes", "Memory of all blocks.", blocks.total * block_bytes)
    yield gauge("vllm:kv_cache_usage_perc", "Share of blocks held, 0 to 1.", usage)
    yield gauge(
        "octavo_kv_cache_usage_ratio",
        "Share of blocks held, under a name that autoscalers take.",
        usage,
    )


def _work(families: Families, counters: Counters) -> Iterator[Metric]:
    counter = families.counter
    yield counter("octavo_engine_requests_total", "Sequences added.", counters.requests)
    yield counter("octavo_engine_steps_total", "Steps.", counters.steps)
    yield counter(
        "octavo_engine_computing_steps_total",
        "Steps that had anything to compute.",
        counters.computing_steps,
    )
    yield counter(
        "octavo_engine_step_time_seconds_total",
        "How long the model took for them.",
        counters.step_seconds,
    )
    by_source: Labelled[float] = {
        ("computed",): counters.prompt_tokens_computed,
        ("cached",): counters.prompt_tokens_cached,
    }
    yield counter(
        "octavo_engine_prompt_tokens_total",
        "Prompt tokens by where their KV came from; pulled ones are neither.",
        by_source,
        ("source",),
    )
    yield counter(
        "octavo_engine_generated_tokens_total",
        "Tokens booked here; a first token counts at the prefill and at the decode worker.",
        counters.tokens_generated,
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


def _preemptions(families: Families, counters: Counters) -> Iterator[Metric]:
    by_kind: Labelled[float] = {
        ("recompute",): counters.preemptions_recompute,
        ("swap",): counters.preemptions_swap,
    }
    yield families.counter(
        "vllm:num_preemptions_total",
        "Sequences that had to give up their blocks.",
        by_kind,
        ("kind",),
    )
    by_direction: Labelled[float] = {
        ("out",): counters.blocks_swapped_out,
        ("in",): counters.blocks_swapped_in,
    }
    yield families.counter(
        "octavo_kv_swapped_blocks_total",
        "Blocks copied between the pool and host memory.",
        by_direction,
        ("direction",),
    )


def _blocks(families: Families, counters: Counters) -> Iterator[Metric]:
    counter = families.counter
    yield counter(
        "octavo_kv_blocks_stored_total", "Blocks the prefix cache took.", counters.blocks_cached
    )
    yield counter(
        "octavo_kv_key_collisions_total",
        "Look-ups that found other tokens under the same key.",
        counters.key_collisions,
    )
    by_state: Labelled[float] = {
        ("live",): counters.live_slot_steps,
        ("allocated",): counters.allocated_slot_steps,
    }
    yield counter(
        "octavo_kv_slot_steps_total",
        "Slots in held blocks, summed over steps: utilisation is live over allocated.",
        by_state,
        ("state",),
    )
    yield counter(
        "octavo_kv_shared_block_steps_total",
        "Blocks that sharing saves, summed over steps.",
        counters.shared_block_steps,
    )
