"""The engines that are measured: each is started, asked for token streams, and ended by its pid.

Every engine gets the same token ids, the same bfloat16 weights and the same two rules: greedy, and
no stop before max_tokens.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc

from octavo.inference.v1 import inference_pb2, inference_pb2_grpc

READY_TIMEOUT_S = 600


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def preloads(venv: Path | None) -> str:
    """tcmalloc and Intel OpenMP, where installed: every CPU engine is faster with them."""
    found = []
    for path in ("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",):
        if Path(path).exists():
            found.append(path)
    if venv is not None and (venv / "lib/libiomp5.so").exists():
        found.append(str(venv / "lib/libiomp5.so"))
    return ":".join(found)


class Process:
    """A server in a session of its own; ending it ends its children."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            command,
            env=os.environ | env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.log = log

    def check(self) -> None:
        if self._process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the server ended with {self._process.returncode}:\n{tail}")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


class Octavo:
    """`octavo up` with one prefill and one decode worker, driven through the public stubs."""

    name = "octavo"

    def __init__(
        self,
        model: Path,
        log_dir: Path,
        address: str | None,
        flags: list[str],
        env: dict[str, str] | None = None,
    ) -> None:
        self._address = address or f"127.0.0.1:{free_port()}"
        self._process: Process | None = None
        if address is None:
            octavo = str(Path(sys.executable).with_name("octavo"))
            command = [octavo, "up", "--model", str(model), "--address", self._address, *flags]
            self._process = Process(command, env or {}, log_dir / "octavo.log")

    async def ready(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._address)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                if self._process is not None:
                    self._process.check()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async for _ in self.send([1_000, 1_001], 2):
                        pass
                    return
                await asyncio.sleep(0.5)

    async def send(self, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=inference_pb2.SamplingParams(
                max_tokens=max_tokens, temperature=0.0, ignore_eos=True
            ),
        )
        call = self._stub.StreamGenerate(inference_pb2.StreamGenerateRequest(request=request))
        async for reply in call:
            if reply.WhichOneof("event") == "delta" and reply.delta.token_ids:
                yield len(reply.delta.token_ids)

    async def close(self) -> None:
        await self._channel.close()
        if self._process is not None:
            self._process.end()


class Vllm:
    """vLLM's CPU build, served, compiled, on both cores, driven through its completions API."""

    name = "vllm"

    def __init__(self, model: Path, log_dir: Path, venv: Path, max_model_len: int) -> None:
        self._port = free_port()
        command = [
            str(venv / "bin/python"), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(model), "--served-model-name", "model",
            "--host", "127.0.0.1", "--port", str(self._port), "--dtype", "bfloat16",
            "--max-model-len", str(max_model_len), "--max-num-seqs", "64",
            "--disable-log-stats", "--no-enable-log-requests",
        ]  # fmt: skip
        env = {
            "LD_PRELOAD": preloads(venv),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        }
        env.pop("OMP_NUM_THREADS", None)
        self._process = Process(command, env, log_dir / "vllm.log")

    async def ready(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                self._process.check()
                with contextlib.suppress(aiohttp.ClientError):
                    async with self._session.get(f"http://127.0.0.1:{self._port}/health") as reply:
                        if reply.status == 200:
                            return
                await asyncio.sleep(1)

    async def send(self, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        body = {
            "model": "model", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0,
            "ignore_eos": True, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        url = f"http://127.0.0.1:{self._port}/v1/completions"
        async with self._session.post(url, json=body) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    if choice["token_ids"]:
                        yield len(choice["token_ids"])

    async def close(self) -> None:
        await self._session.close()
        self._process.end()


class Transformers:
    """`transformers` generate: one static batch at a time, in a process of its own."""

    name = "transformers"

    def __init__(self, model: Path, log_dir: Path, venv: Path | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("transformers_batch.py")), str(model)],
            env=os.environ
            | {"LD_PRELOAD": preloads(venv), "OMP_NUM_THREADS": str(os.cpu_count() or 1)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(log_dir / "transformers.log").open("wb"),
            text=True,
        )

    async def ready(self) -> None:
        """Loading is waited for by the first batch."""

    def run(self, prompts: list[list[int]], max_tokens: int) -> dict[str, float]:
        """Prefill and decode of one batch; seconds to the first token and in all."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the transformers process ended; see its log")
        return dict(json.loads(line))

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
