"""HTTP and gRPC are two doors to one service: the same tokens, scores and usage; C27."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from end_to_end.fleet import Fleet, running_fleet
from end_to_end.prompts import GREEDY, check_alive_and_quiet, expected, prompt_of, streamed
from end_to_end.test_text import PROMPT, ids_of
from end_to_end.vocabulary import saying, word_tokenizer
from octavo.client import AsyncClient, Completion

pytest.importorskip("starlette", reason="octavo[http] is not installed")
pytestmark = pytest.mark.asyncio(loop_scope="session")

BACK_S = 1.0
TOKENS: dict[str, Any] = {"return_token_ids": True, **GREEDY}
# How many connections are dropped in CI; the long run drops a thousand.
NUM_DROPPED = int(os.environ.get("OCTAVO_TEST_DROPPED", "100"))


@dataclass(frozen=True)
class Doors:
    """A service, and a client of each protocol."""

    fleet: Fleet
    grpc: AsyncClient
    http: httpx.AsyncClient

    async def whole(self, **body: Any) -> dict[str, Any]:
        reply = await self.http.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    async def streamed(self, **body: Any) -> list[dict[str, Any]]:
        reply = await self.http.post("/v1/completions", json=body | {"stream": True})
        assert reply.status_code == 200, reply.text
        *events, last = [line for line in reply.text.split("\n\n") if line]
        assert last == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]


@asynccontextmanager
async def both_doors(model: Path, **settings: Any) -> AsyncIterator[Doors]:
    async with (
        running_fleet(model, http_address="127.0.0.1:0", **settings) as fleet,
        AsyncClient(fleet.address) as grpc,
    ):
        assert fleet.router.http is not None
        url = f"http://{fleet.router.http.address}"
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
            yield Doors(fleet, grpc, http)


async def test_tokens_are_those_of_transformers_and_of_grpc(llama: Path) -> None:
    async with both_doors(llama) as doors:
        for length in (1, 16, 33, 200):
            prompt = prompt_of(length)
            fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 12, **TOKENS}
            [choice] = (await doors.whole(**fields))["choices"]
            assert choice["token_ids"] == expected(llama, prompt, 12)
            events = await doors.streamed(**fields)
            streamed_ids = [i for e in events for i in e["choices"][0].get("token_ids", ())]
            assert streamed_ids == choice["token_ids"]
            over_grpc = await doors.grpc.generate(prompt, max_tokens=12, **GREEDY)
            assert over_grpc.token_ids == choice["token_ids"]
            assert over_grpc.text == choice["text"]
            assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
        sampled = {"prompt": prompt, "max_tokens": 12, "temperature": 1.0, "seed": 5}
        again = await doors.grpc.generate(prompt, max_tokens=12, temperature=1.0, seed=5)
        assert (await doors.whole(**sampled))["choices"][0]["text"] == again.text


async def test_log_probabilities_are_those_of_grpc(llama: Path) -> None:
    prompt = prompt_of(40)
    async with both_doors(llama) as doors:
        over_grpc = await doors.grpc.generate(
            prompt, max_tokens=8, logprobs=3, prompt_logprobs=2, **GREEDY
        )
        rows = over_grpc.logprobs
        assert rows is not None and over_grpc.prompt_logprobs is not None
        fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, "logprobs": 3, **GREEDY}
        [choice] = (await doors.whole(**fields, prompt_logprobs=2))["choices"]
        scores = choice["logprobs"]
        assert scores["token_logprobs"] == pytest.approx([row.logprob for row in rows])
        assert [max(top.values()) for top in scores["top_logprobs"]] == pytest.approx(
            [row.top[0][1] for row in rows]
        )
        first, *others = choice["prompt_logprobs"]
        assert first is None and len(others) == 39
        for told, row, token_id in zip(
            others, over_grpc.prompt_logprobs[1:], prompt[1:], strict=True
        ):
            assert row is not None
            assert told[str(token_id)]["logprob"] == pytest.approx(row.logprob)
            best, logprob = row.top[0]
            assert told[str(best)] | {"decoded_token": ""} == {
                "logprob": pytest.approx(logprob),
                "rank": 1,
                "decoded_token": "",
            }
        events = await doors.streamed(**fields)
        parts = [event["choices"][0]["logprobs"] for event in events]
        values = [v for part in parts if part for v in part["token_logprobs"]]
        assert values == scores["token_logprobs"]
        offsets = [v for part in parts if part for v in part["text_offset"]]
        assert offsets == scores["text_offset"]

        echoed = (await doors.whole(**fields, echo=True))["choices"][0]["logprobs"]
        assert len(echoed["tokens"]) == 48 and echoed["token_logprobs"][0] is None
        assert echoed["token_logprobs"][40:] == pytest.approx(scores["token_logprobs"])


async def test_scores_of_a_chat_have_the_bytes_of_its_text(llama: Path) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Hello 🙂"}],
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 20,
        "skip_special_tokens": False,
        **GREEDY,
    }
    async with both_doors(llama) as doors:
        reply = (await doors.http.post("/v1/chat/completions", json=body)).json()
        [choice] = reply["choices"]
        content = choice["logprobs"]["content"]
        assert len(content) == 20 and all(len(row["top_logprobs"]) == 2 for row in content)
        assert all(row["top_logprobs"][0]["logprob"] >= row["logprob"] for row in content)
        told = bytes(byte for row in content for byte in row["bytes"])
        assert told.decode(errors="replace") == choice["message"]["content"]


async def test_usage_comes_once_and_counts_what_was_sent(tmp_path: Path) -> None:
    """C27, one sample: ended by a token, a stop string and length; both doors, both ways."""
    words = ["a", "b", "c", "d"]
    tokenizer = word_tokenizer(words)
    model = saying(tmp_path / "m", tokenizer, ids_of(tokenizer, words))
    async with both_doors(model) as doors:
        for fields, num_tokens in (
            ({}, 5),
            ({"stop": ["bc"]}, 3),
            ({"max_tokens": 2}, 2),
            ({"max_tokens": 1}, 1),
        ):
            settings: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0, **fields}
            whole = await doors.grpc.generate(PROMPT, **settings)
            for completion in (whole, await streamed(doors.grpc, PROMPT, **settings)):
                _check(completion, num_tokens)
            body: dict[str, Any] = {"prompt": PROMPT, "return_token_ids": True, **settings}
            over_http = await doors.whole(**body)
            assert over_http["choices"][0]["token_ids"] == whole.token_ids
            *events, last = await doors.streamed(**body, stream_options={"include_usage": True})
            assert all(event["usage"] is None for event in events)
            assert last["usage"] == over_http["usage"]
            assert last["usage"]["completion_tokens"] == num_tokens
            assert last["usage"]["prompt_tokens"] == len(PROMPT)
            sent = [i for event in events for i in event["choices"][0].get("token_ids", ())]
            assert sent == whole.token_ids


def _check(completion: Completion, num_tokens: int) -> None:
    assert completion.usage.completion_tokens == len(completion.token_ids) == num_tokens
    assert completion.usage.prompt_tokens == len(PROMPT)


async def test_dropped_connections_leave_no_block_held(llama: Path) -> None:
    """At random moments: before the first token, in the middle of a stream, at its end."""
    draw = random.Random(11)
    pool = {"num_blocks": 96, "max_num_batched_tokens": 16}
    num_dropped = 0
    async with both_doors(llama, prefill=pool, decode={"num_blocks": 96}) as doors:

        async def come_and_go(index: int) -> None:
            nonlocal num_dropped
            body = {"prompt": prompt_of(draw.randrange(1, 400), seed=index), "max_tokens": 60}
            body |= {"stream": index % 3 > 0, **GREEDY}
            try:
                async with asyncio.timeout(draw.uniform(0.0, 0.8)):
                    await doors.http.post("/v1/completions", json=body)
            except TimeoutError:
                num_dropped += 1  # httpx closes the connection

        for start in range(0, NUM_DROPPED, 50):
            await asyncio.gather(*(come_and_go(start + i) for i in range(50)))
        await doors.fleet.wait_until_quiet(BACK_S)
        assert num_dropped > NUM_DROPPED // 2
        await check_alive_and_quiet(doors.fleet, llama)


@pytest.mark.parametrize("is_stream", [False, True], ids=["unary", "streamed"])
async def test_a_connection_dropped_in_the_prefill_gives_all_blocks_back(
    llama: Path, is_stream: bool
) -> None:
    async with both_doors(llama, prefill={"max_num_batched_tokens": 16}) as doors:
        body = {"prompt": prompt_of(1200), "max_tokens": 60, "stream": is_stream, **GREEDY}
        asked = asyncio.create_task(doors.http.post("/v1/completions", json=body))
        async with asyncio.timeout(10):
            while not doors.fleet.prefills[0].loop.load.running_sequences:
                await asyncio.sleep(0)
        asked.cancel()
        await doors.fleet.wait_until_quiet(BACK_S)
        await asyncio.wait({asked})
        await check_alive_and_quiet(doors.fleet, llama)
