"""What is told agrees with what requests were told, is documented, and stays bounded."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from end_to_end.fleet import running_fleet
from end_to_end.prompts import GREEDY, prompt_of
from metrics.conftest import Watched
from metrics.figures import COMMON_LABELS, documented
from octavo.client import AsyncClient, OctavoError
from octavo.engine.load import Counters
from octavo.engine.step_plan import StepPlan

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def ask_all(client: AsyncClient, number: int) -> list[Any]:
    """Cold, warm, of one token, of two samples, with a grammar, with an end by a token.

    number: nobody has asked for prompt and grammar of another one.
    """
    prompt, regex = prompt_of(41, seed=f"figures {number}"), f"[ab]{{{number}}}"
    asked: list[dict[str, Any]] = [
        {"max_tokens": 6, **GREEDY},
        {"max_tokens": 6, **GREEDY},
        {"max_tokens": 1, **GREEDY},
        {"max_tokens": 5, "n": 2, "seed": 3},
        {"max_tokens": 30, "regex": regex},
        {"max_tokens": 30, "regex": regex},
    ]
    replies = [await client.generate(prompt, **each) for each in asked]
    stop = replies[0].token_ids[2]
    return [*replies, await client.generate(prompt, stop_token_ids=[stop], **GREEDY)]


async def test_sums_are_those_of_the_requests(watched: Watched) -> None:
    before = await watched.router()
    async with AsyncClient(watched.fleet.address, timeout_s=60) as client:
        replies = await ask_all(client, 3)
        with pytest.raises(OctavoError):
            await client.generate([1, 2_000_000])
        with pytest.raises(OctavoError):
            await client.generate([1, 2], regex="(")
    await watched.fleet.wait_until_quiet()
    usages = [reply.usage for reply in replies]
    told = (await watched.router()).since(before)
    for name, labels, field in (
        ("vllm:prompt_tokens_total", {}, "prompt_tokens"),
        ("vllm:prompt_tokens_cached_total", {}, "cached_prompt_tokens"),
        ("vllm:generation_tokens_total", {}, "completion_tokens"),
        *(
            ("octavo_prompt_tokens_by_source_total", {"source": source}, field)
            for source, field in (
                ("prefill_worker_cache", "cached_on_prefill_worker"),
                ("decode_worker_cache", "cached_on_decode_worker"),
                ("transfer", "transferred_prompt_tokens"),
            )
        ),
    ):
        assert told.value(name, **labels) == sum(getattr(u, field) for u in usages) > 0, name
    for status, count in (("OK", len(replies)), ("INVALID_ARGUMENT", 2), ("CANCELLED", 0)):
        assert told.value("octavo_requests_total", protocol="grpc", status=status) == count
    reasons = [each.finish_reason for reply in replies for each in reply.candidates]
    for reason in ("stop", "length", "stop_sequence", "tool_calls"):
        found = told.value("vllm:request_success_total", finished_reason=reason)
        assert found == reasons.count(reason)
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert told.value(f"vllm:{name}_seconds_count") == len(replies)
    total_s = sum(reply.timing.total_s for reply in replies)
    assert told.value("vllm:e2e_request_latency_seconds_sum") == pytest.approx(total_s)
    assert told.value("vllm:request_prompt_tokens_sum") == sum(u.prompt_tokens for u in usages)
    assert told.value("octavo_grammars_total", outcome="accepted") == 1
    assert told.value("octavo_grammars_total", outcome="reused") == 1
    assert told.value("octavo_grammars_total", outcome="refused") == 1
    assert told.value("octavo_router_requests_running") == 0


async def test_workers_tell_what_they_hold_and_moved(watched: Watched) -> None:
    before = await watched.by_role()
    async with AsyncClient(watched.fleet.address, timeout_s=60) as client:
        replies = await ask_all(client, 4)
    await watched.fleet.wait_until_quiet()
    after = await watched.by_role()
    prefill, decode = (after[role].since(before[role]) for role in ("prefill", "decode"))
    num_pulled = len(replies) - 1  # one of them had one token
    assert decode.value("octavo_kv_transfers_total") == num_pulled
    ok = decode.value("octavo_kv_transfers_total", transport="shared_memory", outcome="ok")
    assert ok == decode.value("octavo_kv_transfer_time_seconds_count") == num_pulled
    for role in ("prefill", "decode"):
        told, (worker,) = after[role], await watched.fleet.workers(role)
        assert told.value("octavo_engine_steps_total") == worker.counters.steps > 0
        for state in ("held", "cached", "free"):
            assert told.value("octavo_kv_blocks", state=state) == getattr(worker.blocks, state)
        assert told.value("octavo_kv_blocks") == worker.blocks.total
        moved = told.value("octavo_kv_transfer_blocks_total", transport="shared_memory")
        assert moved == worker.counters.blocks_transferred > 0
        num_bytes = told.value("octavo_kv_transfer_bytes_total")
        assert num_bytes == worker.counters.bytes_transferred
    # Per sample, all tokens but the first, which P draws; of a pulled request D's first is no gap.
    pulled = [reply for reply in replies if reply.usage.completion_tokens > 1]
    gaps = sum(u.usage.completion_tokens - len(u.candidates) for u in pulled)
    assert decode.value("vllm:inter_token_latency_seconds_count") == gaps
    assert prefill.value("octavo_worker_prefill_time_seconds_count") == len(replies)
    assert decode.value("octavo_grammar_compile_time_seconds_count") == 2


async def test_every_counter_of_the_engine_is_told(watched: Watched) -> None:
    (decode,) = watched.fleet.decodes
    totals = decode.engine.scheduler.totals
    cache = decode.engine.scheduler.prefix_cache
    cache.num_stored, cache.num_collisions = 900_001, 900_002
    names = [name for name in Counters.__slots__ if name not in ("blocks_cached", "key_collisions")]
    for number, name in enumerate(names):
        setattr(totals, name, 100_000 + number)
    values = {
        sample.value for f in (await watched.decode()).families.values() for sample in f.samples
    }
    assert {100_000.0 + number for number in range(len(names))} <= values
    assert {900_001.0, 900_002.0} <= values


async def test_the_document_lists_exactly_what_is_told(watched: Watched) -> None:
    rows = documented()
    for role, told in (await watched.by_role()).items():
        ours = {n: f for n, f in told.families.items() if not n.startswith(("process_", "python_"))}
        wanted = {n for n, (_, _, roles) in rows.items() if role in roles and "redis" not in n}
        assert ours.keys() == wanted, role
        for name, family in ours.items():
            kind, labels, _ = rows[name]
            found = {label for sample in family.samples for label in sample.labels}
            assert (family.type, found - COMMON_LABELS) == (kind, labels - COMMON_LABELS), name
            assert "model_name" in found and ("role" in found or role == "router"), name
            assert family.documentation.endswith("."), name


async def test_no_caller_makes_a_series(watched: Watched) -> None:
    """Ids, salts, models and adapters that nobody has: the same series as before."""
    before = {role: told.series for role, told in (await watched.by_role()).items()}
    async with AsyncClient(watched.fleet.address, timeout_s=60) as client:
        for number in range(5):
            mine = f"mine-{number}"
            await client.generate([5, 6, number], max_tokens=2, request_id=mine, cache_salt=mine)
            for wrong in ({"model": mine}, {"lora_adapter": mine}):
                with pytest.raises(OctavoError) as caught:
                    await client.generate([5, 6], **wrong)
                assert caught.value.code is grpc.StatusCode.NOT_FOUND
    after = {role: told.series for role, told in (await watched.by_role()).items()}
    assert before == after


async def test_a_scrape_does_not_wait_for_a_step(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the step's tokens come as they would have."""
    runner = watched.fleet.decodes[0].engine.runner
    execute, entered, go_on = runner.execute, threading.Event(), threading.Event()

    def slow(plan: StepPlan) -> Any:
        if plan.decodes:
            entered.set()
            assert go_on.wait(20)
        return execute(plan)

    async with AsyncClient(watched.fleet.address, timeout_s=60) as client:
        expected = await client.generate([7, 8, 9], max_tokens=4, **GREEDY)
        monkeypatch.setattr(runner, "execute", slow)
        asking = asyncio.create_task(client.generate([7, 8, 9], max_tokens=4, **GREEDY))
        try:
            assert await asyncio.to_thread(entered.wait, 20)
            decode = await watched.decode()
            assert decode.value("vllm:num_requests_running") == 1
            assert decode.value("octavo_kv_blocks", state="held") > 0
            assert (await watched.router()).value("octavo_router_requests_running") == 1
        finally:
            go_on.set()
        assert (await asking).token_ids == expected.token_ids


async def test_nothing_is_counted_between_tokens_where_nobody_reads(llama: Path) -> None:
    async with running_fleet(llama) as fleet, AsyncClient(fleet.address) as client:
        await client.generate([7, 8, 9], max_tokens=4, **GREEDY)
        assert fleet.decodes[0].metrics_port is None
        assert fleet.decodes[0].loop._token_gaps is None
