"""Who the router knows: addresses from anywhere, one worker each, replaced when it restarts."""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.inference.v1.inference_pb2 import GenerateRequest, StreamGenerateRequest, TokenIds
from octavo.router.config import RouterConfig
from octavo.router.discovery import watch_names
from octavo.router.grpc_door import SERVICE_NAME
from octavo.router.secret import read_or_create
from octavo.router.workers import Workers
from scripted_workers import EOS, Handover, ScriptedDecodeWorker, ScriptedPrefillWorker

StartFleet = Callable[..., AbstractAsyncContextManager[Any]]

LONG = GenerateRequest(token_ids=TokenIds(ids=range(3, 103)))


def workers_for(**facts: Any) -> Workers:
    settings: dict[str, Any] = {
        "vocab_size": 384,
        "model_fingerprint": "m",
        "load_interval_s": 0.02,
        "stuck_after_s": 5.0,
    }
    return Workers(**(settings | facts))


async def until(workers: Workers, condition: Callable[[], bool]) -> None:
    """Wait for a change of the list after which the condition holds."""
    async with asyncio.timeout(10):
        while not condition():
            await workers.changed.wait()  # nothing changes between the look and the wait


async def test_two_addresses_of_one_worker_are_one_worker() -> None:
    workers = workers_for()
    async with ScriptedDecodeWorker("d0", [EOS], Handover()) as decode:
        port = decode.address.rpartition(":")[2]
        workers.want("command line", frozenset({f"127.0.0.1:{port}"}))
        workers.want("registry", frozenset({f"localhost:{port}"}))
        await until(workers, lambda: len(workers.decodes) == 1)
        await asyncio.sleep(0.3)  # the other address has tried by now
        assert len(workers.decodes) == 1
    await workers.close()


async def test_restarted_worker_replaces_its_former_self() -> None:
    workers = workers_for()
    first = ScriptedDecodeWorker("d0", [EOS], Handover())
    await first.__aenter__()
    workers.want("command line", frozenset({first.address}))
    await until(workers, lambda: len(workers.decodes) == 1)
    epoch = workers.named("d0").facts.epoch
    await first.die()
    await until(workers, lambda: not workers.decodes)
    second = ScriptedDecodeWorker("d0", [EOS], Handover())
    second.server.add_insecure_port(first.address)
    second.facts.worker.address = first.address
    await second.server.start()
    await until(workers, lambda: len(workers.decodes) == 1)
    assert workers.named("d0").facts.epoch != epoch
    await workers.close()
    await second.die()


@pytest.mark.parametrize("facts", [{"vocab_size": 385}, {"model_fingerprint": "other"}])
async def test_worker_of_another_model_is_not_used(facts: dict[str, Any]) -> None:
    workers = workers_for(**facts)
    async with (
        ScriptedDecodeWorker("d0", [EOS], Handover()) as wrong,
        ScriptedDecodeWorker("d1", [EOS], Handover(), vocab_size=385) as other,
    ):
        workers.want("command line", frozenset({wrong.address, other.address}))
        await asyncio.sleep(0.5)  # both have been tried
        assert not any(w.facts.worker_id == "d0" for w in workers.decodes)
    await workers.close()


async def test_draining_worker_gets_no_new_requests(start_fleet: StartFleet) -> None:
    async with start_fleet([40, EOS], decodes=2) as fleet:
        fleet.decodes[0].set_load(is_draining=True)
        await until(fleet.router.workers, lambda: len(fleet.router.workers.decodes) == 1)
        for _ in range(5):
            await fleet.stream(LONG)
        assert (len(fleet.decodes[0].specs), len(fleet.decodes[1].specs)) == (0, 5)


async def test_requests_spread_over_idle_workers_before_they_report(
    start_fleet: StartFleet,
) -> None:
    async with start_fleet([40, EOS], prefills=2, decodes=2) as fleet:
        for worker in [*fleet.prefills, *fleet.decodes]:
            worker.hold_before(0)
        calls = [fleet.stub.StreamGenerate(StreamGenerateRequest(request=LONG)) for _ in range(8)]
        async with asyncio.timeout(5):
            for worker in [*fleet.prefills, *fleet.decodes]:
                await worker.wait_open(4)
        for call in calls:
            call.cancel()
        await fleet.quiet()


async def test_name_stands_for_every_address_it_resolves_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers = workers_for()
    records = ["127.0.0.1"]

    async def getaddrinfo(host: str, port: str, **_: Any) -> list[Any]:
        if not records:
            raise socket.gaierror("gone")
        assert host == "prefill.svc"
        return [(socket.AF_INET, 0, 0, "", (record, int(port))) for record in records]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    watching = asyncio.create_task(
        watch_names(("dns:///prefill.svc:9,unix:/x", "host:1"), workers, interval_s=0.02)
    )
    wanted = workers.wanted_addresses
    async with asyncio.timeout(5):
        while wanted() != {"127.0.0.1:9", "unix:/x", "host:1"}:
            await asyncio.sleep(0.01)
        records.append("127.0.0.2")
        while "127.0.0.2:9" not in wanted():
            await asyncio.sleep(0.01)
    records.clear()
    await asyncio.sleep(0.1)
    assert {"127.0.0.1:9", "127.0.0.2:9"} < wanted()  # a name that fails keeps what it had
    assert caplog.text.count("cannot resolve dns:///prefill.svc:9") == 1  # after several tries
    watching.cancel()
    await workers.close()


async def test_health_is_serving_with_both_roles_only(start_fleet: StartFleet) -> None:
    async with start_fleet([40, EOS]) as fleet, grpc.aio.insecure_channel(fleet.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        states = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        serving, not_serving = (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        async with asyncio.timeout(10):
            while (await states.read()).status != serving:
                pass
            fleet.decode.set_load(is_draining=True)
            while (await states.read()).status != not_serving:
                pass
            fleet.decode.load.is_draining = False
            fleet.decode.set_load()
            while (await states.read()).status != serving:
                pass
            await fleet.prefill.die()
            while (await states.read()).status != not_serving:
                pass
        alive = await stub.Check(health_pb2.HealthCheckRequest())
        assert alive.status == serving
        states.cancel()


async def test_secret_file_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = await asyncio.gather(*(asyncio.to_thread(read_or_create, path) for _ in range(8)))
    assert len(set(made)) == 1 and len(made[0]) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secret"]
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="at least 32"):
        read_or_create(path)


def test_settings_are_checked_where_they_are_declared() -> None:
    for wrong in ({"model": ""}, {"max_queued_tokens": 0}, {"max_request_s": float("nan")}):
        with pytest.raises(ValueError):
            RouterConfig(**({"model": "m"} | wrong))
    assert RouterConfig(model="org/Tiny.gguf").model_name == "Tiny"


async def test_sigterm_lets_open_requests_finish_and_exits_0(model_folder: Path) -> None:
    code = (
        "import asyncio, sys; from octavo.router.config import RouterConfig;"
        "from octavo.router.server import serve;"
        "asyncio.run(serve(RouterConfig(model=sys.argv[1], listen_address=sys.argv[2],"
        " prefill_address=(sys.argv[3],), decode_address=(sys.argv[4],), drain_timeout_s=2)))"
    )
    handover = Handover()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    from octavo.checkpoint.fingerprint import model_fingerprint

    layout = {"layout": {"model_fingerprint": model_fingerprint(model_folder)}}
    async with (
        ScriptedPrefillWorker("p0", [40, 41, EOS], handover, **layout) as prefill,
        ScriptedDecodeWorker("d0", [40, 41, EOS], handover, **layout) as decode,
        asyncio.timeout(60),
    ):
        arguments = [str(model_folder), address, prefill.address, decode.address]
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *arguments)
        async with grpc.aio.insecure_channel(address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            health = health_pb2_grpc.HealthStub(channel)
            ready = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
            while True:
                reply = await health.Check(ready, wait_for_ready=True)
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    break
                await asyncio.sleep(0.05)
            finishing_hold = decode.hold_before(2)
            finishing = stub.StreamGenerate(StreamGenerateRequest(request=LONG))
            await finishing.read()
            await decode.wait_open(1)
            process.send_signal(signal.SIGTERM)
            finishing_hold.set()
            while (message := await finishing.read()) is not grpc.aio.EOF:
                last = message
            assert last.HasField("completed")
        assert await process.wait() == 0


async def test_drain_ends_what_outlives_it_unavailable(start_fleet: StartFleet) -> None:
    from octavo.rpc.errors import NoWorker

    async with start_fleet([40, EOS]) as fleet:
        fleet.decode.hold_before(1)
        call = fleet.stub.StreamGenerate(StreamGenerateRequest(request=LONG))
        await call.read()
        fleet.router.generator.end_all(NoWorker("shutting down"))
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down") as ended:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        await fleet.quiet()


async def test_any_client_can_list_the_services(start_fleet: StartFleet) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with start_fleet([40, EOS]) as fleet, grpc.aio.insecure_channel(fleet.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        reply = await call.read()
        names = {service.name for service in reply.list_services_response.service}
        assert SERVICE_NAME in names
        assert inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name in names
        call.cancel()
