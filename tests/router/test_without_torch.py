"""A router runs where torch is not installed."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import grpc

from checkpoints import tiny_llama
from octavo.client import AsyncClient

WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = sys.modules['triton'] = sys.modules['numba'] = None;"
    "from octavo.cli.app import main; main()"
)


async def test_a_router_tokenizes_text_and_chats_without_torch(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    arguments = ["router", "--model", str(model), "--listen-address", address]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WITHOUT_TORCH, *arguments), env=os.environ
    )
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            await asyncio.wait_for(channel.channel_ready(), timeout=60)
        async with AsyncClient(address, timeout_s=10) as client:
            assert await client.tokenize("hello", add_special_tokens=False)
            assert await client.tokenize([{"role": "user", "content": "hello"}])
            assert await client.list_models() == ["tiny"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), timeout=20) == 0
