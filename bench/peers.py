"""The served engines that are measured: each is started, asked for token streams, and ended.

Every engine gets the same token ids, the same weights and the same two rules: greedy, and no stop
before max_tokens. An engine that is not asked sleeps; `cpu_s` shows whether it does.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from load import run_closed_loop, summarize
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from process import Process, free_port, has_bfloat16, preloads

READY_TIMEOUT_S = 1_800  # vLLM compiles at its first start, for minutes on a busy machine
# A machine that others use may hold a step up for seconds; a measurement is no reason to give up.
PATIENCE = {"OCTAVO_STUCK_AFTER_S": "120"}
# Answers to random prompts repeat themselves; peers guess nothing, so neither do we.
NO_GUESSES = {"OCTAVO_MAX_DRAFT_TOKENS": "0"}
# Longer than what a decode worker computes itself: both workers must be ready to answer it.
READY_PROMPT = list(range(1_000, 1_128))
KV_BYTES = 1 << 30  # each worker's: several engines share the memory of one machine


class Served:
    """What every served engine shares: a closed loop of streams."""

    name: str

    def send(self, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        """The sizes of the token groups of one request, as they arrive."""
        raise NotImplementedError

    async def measure(
        self, prompts: list[list[int]], concurrency: int, max_tokens: int
    ) -> dict[str, float]:
        """Throughput and latencies with `concurrency` requests open at a time."""
        return summarize(await run_closed_loop(self.send, prompts, concurrency, max_tokens))


class Octavo(Served):
    """`octavo up` with one prefill and one decode worker, driven through the public stubs."""

    def __init__(
        self,
        model: Path,
        log_dir: Path,
        address: str | None,
        flags: list[str],
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = octavo_name(flags)
        self._address = address or f"127.0.0.1:{free_port()}"
        self._process: Process | None = None
        if address is None:
            octavo = [sys.executable, "-m", "octavo.cli.app", "up"]
            command = [*octavo, "--model", str(model), "--address", self._address]
            command += ["--http-address", "none", *flags]
            log = log_dir / f"{self.name.replace(' ', '-')}.log"
            settings = (
                PATIENCE | NO_GUESSES | {"OCTAVO_KV_CACHE_BYTES": str(KV_BYTES)} | (env or {})
            )
            self._process = Process(command, settings, log)

    @property
    def cpu_s(self) -> float:
        return self._process.cpu_s if self._process is not None else 0.0

    async def ready(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._address)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                if self._process is not None:
                    self._process.check()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async for _ in self.send(READY_PROMPT, 2):
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
            if reply.delta.token_ids:
                yield len(reply.delta.token_ids)

    async def close(self) -> None:
        await self._channel.close()
        if self._process is not None:
            self._process.end()


def octavo_name(flags: list[str]) -> str:
    """octavo, or octavo int8 where the flags ask for that quantization."""
    if "--quantization" in flags:
        return f"octavo {flags[flags.index('--quantization') + 1]}"
    return "octavo"


class HttpServed(Served):
    """A peer that streams server-sent events over HTTP."""

    def __init__(self, name: str, process: Process, port: int) -> None:
        self.name = name
        self._process = process
        self._url = f"http://127.0.0.1:{port}"

    @property
    def cpu_s(self) -> float:
        return self._process.cpu_s

    async def ready(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                self._process.check()
                with contextlib.suppress(aiohttp.ClientError):
                    async with self._session.get(f"{self._url}/health") as reply:
                        if reply.status == 200:
                            return
                await asyncio.sleep(0.5)

    async def events(self, path: str, body: dict[str, object]) -> AsyncIterator[dict[str, Any]]:
        async with self._session.post(self._url + path, json=body) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:])

    async def close(self) -> None:
        await self._session.close()
        self._process.end()


def vllm_dtype(dtype: str) -> str:
    """auto: what is faster on this processor, by whether it multiplies bfloat16 in hardware."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if has_bfloat16() else "float32"


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """How vLLM is run; by default what is fastest on this machine."""

    dtype: str = "auto"
    flags: list[str] = field(default_factory=list)  # such as --enforce-eager


def vllm_environment(venv: Path) -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))
    return {
        "LD_PRELOAD": preloads(venv),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "OMP_NUM_THREADS": str(len(cores)),
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": "",
    }


class Vllm(HttpServed):
    """vLLM's CPU build, served, compiled, on both cores, driven through its completions API."""

    def __init__(
        self,
        model: Path,
        log_dir: Path,
        venv: Path,
        max_model_len: int,
        options: VllmOptions | None = None,
    ) -> None:
        options = options or VllmOptions()
        dtype, port = vllm_dtype(options.dtype), free_port()
        name = " ".join(["vllm", dtype, *(flag.lstrip("-") for flag in options.flags)])
        command = [
            str(venv / "bin/python"), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(model), "--served-model-name", "model",
            "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype,
            "--max-model-len", str(max_model_len), "--max-num-seqs", "64",
            "--disable-log-stats", "--no-enable-log-requests", *options.flags,
        ]  # fmt: skip
        log = log_dir / f"{name.replace(' ', '-')}.log"
        super().__init__(name, Process(command, vllm_environment(venv), log), port)

    async def send(self, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        body = {
            "model": "model", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0,
            "ignore_eos": True, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        async for event in self.events("/v1/completions", body):
            for choice in event["choices"]:
                if choice["token_ids"]:
                    yield len(choice["token_ids"])


class Llama(HttpServed):
    """llama.cpp's server with one thread and a slot for each caller."""

    def __init__(self, gguf: Path, log_dir: Path, folder: Path, slots: int, context: int) -> None:
        name, port = f"llama.cpp {gguf.stem}", free_port()
        command = [
            str(folder / "bin/llama-server"), "--model", str(gguf),
            "--host", "127.0.0.1", "--port", str(port), "--threads", "1", "--threads-batch", "1",
            "--parallel", str(slots), "--ctx-size", str(slots * context),
            "--no-webui", "--cache-ram", "0",
        ]  # fmt: skip
        log = log_dir / f"{name.replace(' ', '-')}.log"
        super().__init__(name, Process(command, {"LD_PRELOAD": preloads(None)}, log), port)

    async def send(self, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        body = {
            "prompt": prompt, "n_predict": max_tokens, "temperature": 0.0, "ignore_eos": True,
            "stream": True, "cache_prompt": False,
        }  # fmt: skip
        known = 0  # an event may be held back until its text is whole UTF-8, so count by the total
        async for event in self.events("/completion", body):
            total = int(event["tokens_predicted"])
            if total > known:
                yield total - known
            known = total
