"""The engines that are measured without a server: each a child process that is given batches.

A child answers {"prompts": ids, "max_tokens": n} with the seconds it took; loading is waited for by
the first question.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from peers import vllm_dtype, vllm_environment
from process import LineWorker, preloads

HERE = Path(__file__).parent


class Offline:
    """A child process that runs a batch at a time."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log_dir: Path) -> None:
        self.name = name
        self._worker = LineWorker(command, env, log_dir / f"{name.replace(' ', '-')}.log")

    @property
    def cpu_s(self) -> float:
        return self._worker.cpu_s

    async def ready(self) -> None:
        await self._ask([[1_000, 1_001]], 2)

    async def measure(
        self, prompts: list[list[int]], concurrency: int, max_tokens: int
    ) -> dict[str, float]:
        """Throughput of the prompts in batches of `concurrency`."""
        seconds = 0.0
        for begin in range(0, len(prompts), concurrency):
            seconds += await self._ask(prompts[begin : begin + concurrency], max_tokens)
        return {"output_tokens_per_s": len(prompts) * max_tokens / seconds}

    async def _ask(self, prompts: list[list[int]], max_tokens: int) -> float:
        request = {"prompts": prompts, "max_tokens": max_tokens}
        answer = await asyncio.to_thread(self._worker.ask, request)
        return answer["seconds"]

    async def close(self) -> None:
        self._worker.end()


def transformers_engine(
    way: str, model: Path, log_dir: Path, dtype: str, venv: Path | None
) -> Offline:
    """`transformers`: generate, continuous, or one after another; all cores."""
    dtype = vllm_dtype(dtype)  # torch emulates bfloat16 for both
    command = [sys.executable, str(HERE / "transformers_batch.py"), way, str(model), dtype]
    cores = str(len(os.sched_getaffinity(0)))
    env = {"LD_PRELOAD": preloads(venv), "OMP_NUM_THREADS": cores}
    return Offline(f"transformers {way} {dtype}", command, env, log_dir)


def octavo_llm(model: Path, log_dir: Path, settings: dict[str, object]) -> Offline:
    """`octavo.LLM` in a process of its own, with threads as it chooses; it guesses nothing."""
    settings = {"max_draft_tokens": 0} | settings
    command = [sys.executable, str(HERE / "llm_batch.py"), "octavo", str(model)]
    return Offline("octavo LLM", [*command, json.dumps(settings)], {}, log_dir)


def vllm_llm(model: Path, log_dir: Path, venv: Path, dtype: str, max_model_len: int) -> Offline:
    """vLLM's `LLM` in its own environment, compiled, on all cores."""
    dtype = vllm_dtype(dtype)
    settings = {"dtype": dtype, "max_model_len": max_model_len, "max_num_seqs": 64, "seed": 0}
    command = [str(venv / "bin/python"), str(HERE / "llm_batch.py"), "vllm", str(model)]
    env = vllm_environment(venv)
    return Offline(f"vllm LLM {dtype}", [*command, json.dumps(settings)], env, log_dir)
