"""What HTTP adds to a token beside gRPC, and our load beside `vllm bench serve` on the same port.

    python bench/http_door.py                        # HTTP beside gRPC
    python bench/http_door.py --vllm DIR             # and beside vLLM's load generator
    python bench/http_door.py --vllm DIR --step-ms 20

One service, asked in turns: over gRPC, over HTTP, and by `vllm bench serve` of the environment DIR
(bench/setup_vllm.sh). All send the same texts; a word before each keeps one from finding the blocks
of another in the cache. With --step-ms no model runs: the workers are scripted and make a step so
often, whatever else the machine does, so that two loads on one service differ by themselves alone.
"""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from command import add_lengths, case_of, levels_of, make_parser, run
from figures import Figure, figure_of
from octavo.checkpoint.resolve import resolve_model
from octavo.inference.v1 import inference_pb2
from octavo.text.tokenizer import Tokenizer
from peers import Octavo, Served, vllm_environment
from process import free_port
from relay import Relay
from rounds import THROUGHPUT, Case, Engine, Rows, pick

GRPC, HTTP, VLLM = "octavo gRPC", "octavo HTTP", "vllm bench serve"
MODEL = "model"
TOOL_TIMEOUT_S = 600
# What `vllm bench serve` runs: in CPU builds, which have another name, the command itself does not
# find its own version.
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


class Texts:
    """The texts of random token ids."""

    def __init__(self, tokenizer: Tokenizer, word: str) -> None:
        self._tokenizer, self._word = tokenizer, word

    def of(self, prompt: list[int]) -> str:
        return f"{self._word} {self._tokenizer.decode(prompt)}"


class GrpcDoor(Octavo):
    """The service itself, asked over gRPC."""

    def __init__(
        self,
        model: Path,
        work: Path,
        texts: Texts,
        flags: list[str],
        running_at: str | None = None,
    ) -> None:
        super().__init__(model, work, running_at, flags)
        self.name = GRPC
        self._texts = texts

    async def send(self, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        request = inference_pb2.GenerateRequest(
            text=self._texts.of(prompt),
            sampling=inference_pb2.SamplingParams(
                max_tokens=max_tokens, temperature=0.0, ignore_eos=True
            ),
        )
        call = self._stub.StreamGenerate(inference_pb2.StreamGenerateRequest(request=request))
        async for reply in call:
            if reply.delta.token_ids:
                yield len(reply.delta.token_ids)


class ScriptedDoor(GrpcDoor):
    """A router over scripted workers, asked over gRPC."""

    def __init__(self, relay: Relay, model: Path, work: Path, texts: Texts) -> None:
        super().__init__(model, work, texts, [], relay.address)
        self._relay = relay

    @property
    def cpu_s(self) -> float:
        return self._relay.cpu_s

    async def close(self) -> None:
        await super().close()
        self._relay.end()


class HttpDoor(Served):
    """The same service over HTTP; it is not this object's to start or end."""

    name = HTTP
    cpu_s = 0.0

    def __init__(self, url: str, texts: Texts) -> None:
        self._url = url
        self._texts = texts

    async def ready(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(self._url, timeout=timeout)
        while True:
            try:
                async with self._session.get("/health") as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)

    async def send(self, prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        """An event may hold several tokens: their number is known once usage is there."""
        body = {
            "model": MODEL, "prompt": self._texts.of(prompt), "max_tokens": max_tokens,
            "temperature": 0.0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        num_events = 0
        async with self._session.post("/v1/completions", json=body) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                event: dict[str, Any] = json.loads(line[6:])
                if event["choices"]:
                    num_events += 1
                    yield 1
                else:
                    yield event["usage"]["completion_tokens"] - num_events

    async def close(self) -> None:
        await self._session.close()


class VllmBench:
    """vLLM's load generator; each turn is a process of its own."""

    name = VLLM
    cpu_s = 0.0

    def __init__(self, venv: Path, url: str, model: Path, work: Path, texts: Texts) -> None:
        self._venv, self._url, self._model, self._work = venv, url, model, work
        self._texts = texts

    async def ready(self) -> None:
        return None

    async def measure(
        self, prompts: list[list[int]], concurrency: int, max_tokens: int
    ) -> dict[str, float]:
        source, result = self._work / "prompts.jsonl", self._work / "result.json"
        lines = [
            json.dumps({"prompt": self._texts.of(prompt), "output_tokens": max_tokens})
            for prompt in prompts
        ]
        source.write_text("\n".join(lines), encoding="utf-8")
        command = [
            str(self._venv / "bin/python"), "-c", BENCH_SERVE, "--backend", "openai",
            "--base-url", self._url, "--endpoint", "/v1/completions",
            "--model", str(self._model), "--served-model-name", MODEL,
            "--dataset-name", "custom", "--dataset-path", str(source), "--skip-chat-template",
            "--disable-shuffle", "--custom-output-len", str(max_tokens),
            "--num-prompts", str(len(prompts)), "--max-concurrency", str(concurrency),
            "--temperature", "0", "--ignore-eos", "--ready-check-timeout-sec", "0",
            "--disable-tqdm", "--save-result", "--result-dir", str(self._work),
            "--result-filename", result.name, "--metric-percentiles", "50,90,99",
        ]  # fmt: skip
        log = self._work / "vllm-bench.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=output,
                stderr=output,
                env=os.environ | vllm_environment(self._venv),
            )
            async with asyncio.timeout(TOOL_TIMEOUT_S):
                status = await process.wait()
        if status:
            raise RuntimeError(f"vllm bench serve ended with {status}:\n{log.read_text()[-2000:]}")
        return _figures(json.loads(result.read_text()), len(prompts) * max_tokens)

    async def close(self) -> None:
        return None


def _figures(found: dict[str, Any], num_tokens: int) -> dict[str, float]:
    """What it measured, under our names; they are defined alike."""
    if found["total_output_tokens"] != num_tokens:
        raise RuntimeError(f"asked for {num_tokens} tokens, got {found['total_output_tokens']}")
    figures = {THROUGHPUT: float(found["output_throughput"])}
    for name in ("ttft", "itl", "tpot"):
        for percent in (50, 90, 99):
            figures[f"{name}_p{percent}_ms"] = float(found[f"p{percent}_{name}_ms"])
    return figures


def make_figures(rows: Rows, levels: list[int]) -> list[Figure | None]:
    figures: list[Figure | None] = []
    for level in levels:
        case = f"{level} at once"
        tpots = [pick(rows, case, name, "tpot_p50_ms") for name in (GRPC, HTTP)]
        if added := [over_http - over_grpc for over_grpc, over_http in zip(*tpots, strict=True)]:
            detail = f"{median(tpots[1]):.3f} - {median(tpots[0]):.3f} ms"
            figures.append(figure_of("http-added", added, detail, case))
        for name, text in ((THROUGHPUT, "tokens/s"), ("tpot_p50_ms", "ms TPOT")):
            ours, theirs = (pick(rows, case, engine, name) for engine in (HTTP, VLLM))
            if theirs:
                figures.append(_difference(ours, theirs, f"{case}, {text}"))
    return figures


def _difference(ours: list[float], theirs: list[float], variant: str) -> Figure:
    """How far the median of the rounds' ratios is from one, in percent."""
    percents = [100 * (mine / other - 1) for mine, other in zip(ours, theirs, strict=True)]
    detail = f"{median(ours):.4g} / {median(theirs):.4g}"
    signed = figure_of("http-vllm-bench", percents, detail, variant)
    return replace(signed, value=abs(signed.value))


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "http")
    add_lengths(parser, "1,8")
    parser.add_argument("--vllm", type=Path, help="environment made by bench/setup_vllm.sh")
    parser.add_argument("--step-ms", type=float, help="of scripted workers, instead of a model")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    tokenizer = Tokenizer.load(resolve_model(args.model))

    def start(model: Path, work: Path, engines: list[Engine]) -> list[Case]:
        address = f"127.0.0.1:{free_port()}"
        url = f"http://{address}"
        # The router tells its model's name by the folder's, which a load generator must know.
        served = work / MODEL
        served.symlink_to(model.resolve(), target_is_directory=True)
        flags = [*args.octavo_flags.split(), "--http-address", address]
        texts = Texts(tokenizer, "One")
        if args.step_ms is None:
            engines.append(GrpcDoor(served, work, texts, flags))
        else:
            relay = Relay(served, work, flags, args.step_ms)
            engines.append(ScriptedDoor(relay, served, work, texts))
        engines.append(HttpDoor(url, Texts(tokenizer, "Two")))
        if args.vllm is not None:
            texts = Texts(tokenizer, "Three")
            engines.append(VllmBench(args.vllm.resolve(), url, served, work, texts))
        return [case_of(args, level, engines) for level in levels_of(args)]

    what = f"{args.input_tokens} tokens in, {args.output_tokens} out, HTTP beside gRPC"
    run(args, what, start, lambda rows: make_figures(rows, levels_of(args)))


if __name__ == "__main__":
    main()
