"""FleetService tells each worker's state, each request's way, and sums that equal usage."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from octavo.inference.v1 import fleet_pb2, fleet_pb2_grpc
from octavo.inference.v1.inference_pb2 import GenerateRequest, TokenIds
from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.fleet import MAX_REQUESTS
from scripted_workers import EOS

LONG = GenerateRequest(request_id="mine", token_ids=TokenIds(ids=range(3, 103)))
COUNTERS = worker_pb2.GetWorkerResponse.Counters(tokens_generated=7, step_seconds=0.25)


async def ask(fleet: Any, max_requests: int = 0) -> fleet_pb2.GetFleetResponse:
    async with grpc.aio.insecure_channel(fleet.address) as channel:
        stub = fleet_pb2_grpc.FleetServiceStub(channel)
        request = fleet_pb2.GetFleetRequest(max_requests=max_requests)
        reply: fleet_pb2.GetFleetResponse = await stub.GetFleet(request, timeout=10)
        return reply


async def until(
    fleet: Any, condition: Callable[[fleet_pb2.GetFleetResponse], bool]
) -> fleet_pb2.GetFleetResponse:
    """Ask until it is so."""
    async with asyncio.timeout(10):
        while True:
            reply = await ask(fleet, 10)
            if condition(reply):
                return reply
            await asyncio.sleep(0.02)


def states(reply: fleet_pb2.GetFleetResponse) -> dict[str, str]:
    name = fleet_pb2.WorkerState.Name
    return {
        each.worker_id: name(each.state).removeprefix("WORKER_STATE_") for each in reply.workers
    }


async def test_it_tells_who_is_there_and_what_they_hold(start_fleet: Any) -> None:
    async with start_fleet([5, EOS], decodes=2) as fleet:
        fleet.decode.facts.MergeFrom(worker_pb2.GetWorkerResponse(counters=COUNTERS, model="m"))
        blocks = worker_pb2.GetWorkerResponse.Blocks(total=10, free=3, cached=3, held=4)
        fleet.decode.set_load(running_sequences=2, waiting_sequences=1, blocks=blocks)
        reply = await until(fleet, lambda told: told.workers[1].running_sequences == 2)
        assert states(reply) == dict.fromkeys(("p0", "d0", "d1"), "READY")
        worker = reply.workers[1]
        assert (worker.worker_id, worker.role) == ("d0", fleet_pb2.FLEET_ROLE_DECODE)
        assert worker.address == fleet.decode.address
        assert (worker.waiting_sequences, worker.blocks.held, worker.blocks.free) == (1, 4, 3)
        assert (worker.counters.tokens_generated, worker.counters.step_seconds) == (7, 0.25)
        assert reply.router.is_ready and reply.router.model == "tiny"
        assert (await ask(fleet)).router.epoch == reply.router.epoch


async def test_workers_that_take_no_work_say_why(start_fleet: Any) -> None:
    async with start_fleet([5, EOS], prefills=2, decodes=2, stuck_after_s=0.4) as fleet:
        fleet.prefills[1].set_load(is_draining=True)
        fleet.decode.set_load(running_sequences=1)  # and it makes no step
        await fleet.decodes[1].die()
        expected = {"p0": "READY", "p1": "DRAINING", "d0": "STUCK", "d1": "UNREACHABLE"}
        reply = await until(fleet, lambda told: states(told) == expected)
        dead = reply.workers[-1]
        assert dead.address == fleet.decodes[1].address
        assert dead.role == fleet_pb2.FLEET_ROLE_DECODE
        reply = await until(fleet, lambda told: "refused" in told.workers[-1].problem)
        assert not reply.router.is_ready


async def test_an_address_where_nobody_ever_answered_is_told(
    start_fleet: Any, unused_tcp_port: int
) -> None:
    async with start_fleet([5, EOS]) as fleet:
        nobody = f"127.0.0.1:{unused_tcp_port}"
        fleet.router.workers.want("test", frozenset({nobody}))
        reply = await until(fleet, lambda told: "refused" in told.workers[-1].problem)
        assert [each.worker_id for each in reply.workers] == ["p0", "d0", ""]
        assert reply.workers[-1].address == nobody
        assert reply.workers[-1].role == fleet_pb2.FLEET_ROLE_UNSPECIFIED


async def test_a_worker_with_two_addresses_stands_there_once(start_fleet: Any) -> None:
    async with start_fleet([5, EOS]) as fleet:
        port = fleet.decode.address.rpartition(":")[2]
        fleet.router.workers.want("test", frozenset({f"localhost:{port}"}))
        reply = await until(fleet, lambda told: len(told.workers) == 2)
        await asyncio.sleep(0.3)  # the other address has tried by now
        reply = await ask(fleet)
        assert states(reply) == {"p0": "READY", "d0": "READY"}


async def test_a_worker_in_a_long_step_is_shown_without_counters(start_fleet: Any) -> None:
    async with start_fleet([5, EOS]) as fleet:
        fleet.decode.facts.counters.CopyFrom(COUNTERS)
        may_tell = fleet.decode.hold_facts()
        reply = await ask(fleet)
        assert states(reply) == {"p0": "READY", "d0": "READY"}
        assert [each.HasField("counters") for each in reply.workers] == [True, False]
        may_tell.set()
        await until(fleet, lambda told: told.workers[1].counters.tokens_generated == 7)


async def test_many_who_ask_at_once_ask_each_worker_once(start_fleet: Any) -> None:
    async with start_fleet([5, EOS]) as fleet:
        may_tell = fleet.decode.hold_facts()
        asking = [asyncio.create_task(ask(fleet)) for _ in range(20)]
        await asyncio.sleep(0.2)
        may_tell.set()
        replies = await asyncio.gather(*asking)
        assert all(each.workers[1].HasField("counters") for each in replies)
        assert fleet.decode.num_told <= 3, "once when it joined, once now"


async def test_a_running_request_is_told_with_its_way_and_without_its_text(
    start_fleet: Any,
) -> None:
    async with start_fleet([5, 6, 7, EOS]) as fleet:
        may_go_on = fleet.decode.hold_before(2)
        running = asyncio.create_task(fleet.stream(LONG))
        reply = await until(
            fleet, lambda told: any(each.completion_tokens == 2 for each in told.requests)
        )
        (request,) = reply.requests
        assert (request.request_id, request.prompt_tokens) == ("mine", 100)
        assert (request.prefill_worker, request.decode_worker) == ("p0", "d0")
        assert 0 <= request.age.ToNanoseconds() < 10e9
        assert reply.router.running_requests == 1
        assert reply.router.counters.completion_tokens == 2, "tokens count as they come"
        assert not (await ask(fleet, max_requests=0)).requests
        may_go_on.set()
        await running
        reply = await until(fleet, lambda told: told.router.counters.completed == 1)
        assert not reply.requests and reply.router.running_requests == 0
        assert reply.router.counters.completion_tokens == 4


async def test_requests_count_by_how_they_ended(start_fleet: Any) -> None:
    async with start_fleet([5, 6, 7, EOS], max_queued_tokens=100) as fleet:
        await fleet.stream(LONG)
        await fleet.stub.Generate(LONG, timeout=10)
        held = [fleet.prefill.hold_before(0), fleet.decode.hold_before(0)]
        waiting = asyncio.create_task(fleet.stream(LONG))
        await until(fleet, lambda told: told.router.running_requests == 1)
        reply = await ask(fleet)
        assert reply.router.queued_prompt_tokens == 100
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await fleet.stub.Generate(LONG, timeout=10)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        waiting.cancel()
        await until(fleet, lambda told: told.router.counters.cancelled == 1)
        for may_go_on in held:
            may_go_on.set()
        await fleet.decode.die()
        with pytest.raises(grpc.aio.AioRpcError):
            await fleet.stub.Generate(LONG, timeout=10)
        reply = await until(fleet, lambda told: told.router.counters.failed == 1)
        counters = reply.router.counters
        assert (counters.requests, counters.completed) == (4, 2)
        assert (counters.failed, counters.cancelled, counters.refused) == (1, 1, 1)
        assert (counters.prompt_tokens, counters.completion_tokens) == (200, 8)


async def test_what_was_found_of_a_prompt_counts_however_its_request_ends(
    start_fleet: Any,
) -> None:
    def found(reply: fleet_pb2.GetFleetResponse) -> tuple[int, int, int]:
        told = reply.router.counters
        on_workers = told.cached_on_prefill_worker, told.cached_on_decode_worker
        return told.cached_prompt_tokens, *on_workers

    async with start_fleet([5, 6, 7, EOS]) as fleet:
        fleet.prefill.cached_prompt_tokens, fleet.decode.cached_prompt_tokens = 48, 16
        may_go_on = fleet.decode.hold_before(2)
        leaving = asyncio.create_task(fleet.stream(LONG))
        reply = await until(fleet, lambda told: told.router.counters.completion_tokens == 2)
        assert found(reply) == (48, 48, 16)
        leaving.cancel()
        reply = await until(fleet, lambda told: told.router.counters.cancelled == 1)
        assert found(reply) == (48, 48, 16)
        may_go_on.set()
        await fleet.stream(LONG)
        reply = await until(fleet, lambda told: told.router.counters.completed == 1)
        assert found(reply) == (96, 96, 32)
        completed = fleet.router.generator.activity.ended["completed"]
        assert completed.cached_prompt_tokens == 48, "what Prometheus is told"


async def test_the_list_is_bounded(start_fleet: Any) -> None:
    async with start_fleet([5, EOS], wait_ready=False) as fleet:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await ask(fleet, MAX_REQUESTS + 1)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "max_requests must be at most 1000, got 1001" in (error.value.details() or "")
