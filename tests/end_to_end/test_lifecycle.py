"""`octavo up` from start to end: without Redis, drained, interrupted, and when a worker dies."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil  # type: ignore[import-untyped]
import pytest

from end_to_end.prompts import GREEDY, check_alive_and_quiet, expected, prompt_of
from octavo.client import AsyncClient
from octavo.inference.v1.inference_pb2 import (
    GenerateRequest,
    SamplingParams,
    StreamGenerateRequest,
    TokenIds,
)
from octavo.inference.v1.inference_pb2_grpc import InferenceServiceStub
from octavo.transfer.namespace import SHM_FOLDER
from service import Service, running_service

pytestmark = pytest.mark.asyncio(loop_scope="session")

FLAGS = ("--dtype", "float32")
POOL = {"OCTAVO_NUM_BLOCKS": "512"}


def processes_of(service: Service) -> list[psutil.Process]:
    """Everything that this `octavo up` started."""
    return list(psutil.Process(service.process.pid).children(recursive=True))


def segments_of(processes: list[psutil.Process]) -> list[Path]:
    """Their shared memory; a segment's name holds its owner's pid."""
    pids = {str(process.pid) for process in processes}
    return [path for path in SHM_FOLDER.iterdir() if pids & set(path.name.split("-"))]


def check_nothing_left(service: Service, processes: list[psutil.Process], folder: Path) -> None:
    """No process, no socket, no shared memory, no temporary folder."""
    assert not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not list(service.run_dir.glob("*.sock"))
    assert not segments_of(processes)
    assert not list(folder.iterdir())


async def test_two_start_at_once_and_an_interrupt_leaves_no_process_socket_or_shared_memory(
    llama: Path,
) -> None:
    """Nobody says where, so both want the usual ports; Ctrl-C, with an embedded Redis each."""
    async with AsyncExitStack() as stack:
        folders = []
        for _ in range(2):  # short names: a unix socket's path has 107 bytes at most
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="up-"))
            folders.append(Path(folder))
        starting = []
        for folder in folders:
            env = POOL | {"TMPDIR": str(folder)}
            running = running_service(llama, *FLAGS, ports=(), env=env)
            starting.append(stack.enter_async_context(running))
        services = await asyncio.gather(*starting)
        assert len({address for s in services for address in (s.address, s.http_address)}) == 4
        for service, folder in zip(services, folders, strict=True):
            await check_alive_and_quiet(service, llama)
            processes = processes_of(service)
            assert len(processes) == 4 and segments_of(processes), "Redis, router and two workers"
            assert list(folder.iterdir()), "Redis has its folder here"
            service.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(30):
                assert await service.process.wait() == 0
            check_nothing_left(service, processes, folder)


@pytest.mark.slow
async def test_an_address_that_is_taken_is_refused_with_advice(llama: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        arguments = ("--model", str(llama), "--no-redis", "--address", taken)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "octavo.cli.app", "up", *arguments), stderr=PIPE
        )
        _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    assert f"cannot listen at {taken}" in said.decode()
    assert "give another address, or port 0 for a free one" in said.decode()


async def test_sigterm_lets_running_streams_finish_and_exits_0(llama: Path, tmp_path: Path) -> None:
    """And without Redis: workers are found by address."""
    env = POOL | {"TMPDIR": str(tmp_path)}
    async with running_service(llama, *FLAGS, "--no-redis", env=env) as service:
        await check_alive_and_quiet(service, llama)
        processes = processes_of(service)
        assert len(processes) == 3, "a router and two workers"
        prompts = [prompt_of(length, seed="drain") for length in (20, 100)]
        async with AsyncClient(service.address) as client:
            streams = [client.stream(prompt, max_tokens=400, **GREEDY) for prompt in prompts]
            firsts = [await anext(stream) for stream in streams]
            service.process.send_signal(signal.SIGTERM)
            for prompt, first, stream in zip(prompts, firsts, streams, strict=True):
                rest = [token async for delta in stream for token in delta.token_ids]
                assert first.token_ids + rest == expected(llama, prompt, 400)
        async with asyncio.timeout(30):
            assert await service.process.wait() == 0
        check_nothing_left(service, processes, tmp_path)


@pytest.mark.slow
async def test_several_routers_share_the_address_and_drain(llama: Path, tmp_path: Path) -> None:
    env = POOL | {"TMPDIR": str(tmp_path), "OCTAVO_ROUTERS": "2"}
    async with running_service(llama, *FLAGS, "--no-redis", env=env) as service:
        processes = processes_of(service)
        assert len(processes) == 4, "two routers and two workers"
        prompt = prompt_of(100, seed="routers")
        request = StreamGenerateRequest(
            request=GenerateRequest(
                token_ids=TokenIds(ids=prompt),
                sampling=SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True),
            )
        )
        own = [("grpc.use_local_subchannel_pool", 1)]  # a connection each
        async with AsyncExitStack() as stack:
            streams = []
            for _ in range(8):
                channel = grpc.aio.insecure_channel(service.address, options=own)
                stub: Any = InferenceServiceStub(await stack.enter_async_context(channel))
                streams.append(aiter(stub.StreamGenerate(request)))
            firsts = [await anext(stream) for stream in streams]
            service.process.send_signal(signal.SIGTERM)
            for first, stream in zip(firsts, streams, strict=True):
                tokens = list(first.delta.token_ids)
                async for message in stream:
                    tokens += message.delta.token_ids
                assert tokens == expected(llama, prompt, 200)
        async with asyncio.timeout(30):
            assert await service.process.wait() == 0
        check_nothing_left(service, processes, tmp_path)


async def test_a_redis_that_is_not_there_costs_nothing_and_a_dead_worker_ends_the_service(
    llama: Path, tmp_path: Path
) -> None:
    """Nobody listens at the URL; later one worker is killed, and nothing outlives it."""
    env = POOL | {"TMPDIR": str(tmp_path)}
    url = f"unix://{tmp_path}/nobody.sock"
    async with running_service(llama, *FLAGS, "--redis-url", url, env=env) as service:
        async with AsyncClient(service.address, timeout_s=30) as client:
            for length in (20, 200):
                prompt = prompt_of(length, seed="absent")
                for _ in range(2):
                    reply = await client.generate(prompt, max_tokens=8, **GREEDY)
                    assert reply.token_ids == expected(llama, prompt, 8)
        await check_alive_and_quiet(service, llama)
        processes = processes_of(service)
        (victim,) = [p for p in processes if "decode-worker" in p.cmdline()]
        os.kill(victim.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            assert await service.process.wait() == 1
        assert not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert not segments_of(processes)
