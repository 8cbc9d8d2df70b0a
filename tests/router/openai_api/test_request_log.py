"""One line for each request, however it came and ended, and never its text."""

import logging
from typing import Any

import grpc
import pytest

from octavo.inference.v1 import inference_pb2 as pb
from octavo.router.model import ServedModel
from router.openai_api.conftest import COMPLETION, StartDoor, says

TEXT = "It is well."
SECRET = "xyzzy-secret"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Fields of the router's lines so far."""
    found = [record for record in caplog.records if record.getMessage() == "request"]
    return [{k: v for k, v in vars(record)["fields"].items() if v is not None} for record in found]


async def test_ids_usage_and_timing_stand_in_one_line(
    start_door: StartDoor, served_model: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tokens = says(served_model, TEXT)
    async with start_door(tokens) as door:
        await door.complete(request_id="over-http")
        await door.fleet.stub.Generate(
            pb.GenerateRequest(text="How is it?", request_id="over-grpc")
        )
        await door.fleet.quiet()
    by_http, by_grpc = lines(caplog)
    for line, protocol in ((by_http, "http"), (by_grpc, "grpc")):
        assert (line["request_id"], line["protocol"]) == (f"over-{protocol}", protocol)
        assert (line["status"], line["finish_reason"]) == ("OK", "stop")
        assert line["completion_tokens"] == len(tokens)
        assert line["prompt_tokens"] > 0 and line["cached_prompt_tokens"] == 0
        assert (line["prefill_worker"], line["decode_worker"]) == ("p0", "d0")
        assert 0 < line["first_token_s"] <= line["total_s"]
        assert line["run_id"] in {spec.key.request_id for spec in door.fleet.prefill.specs}


async def test_refused_failed_and_left_requests_have_lines_too(
    start_door: StartDoor, served_model: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with start_door([5, 6, 7], stream_interval_s=0.0) as door:
        await door.post("/v1/completions", **COMPLETION, top_p=2)
        await door.post("/v1/completions", **COMPLETION, unknown=2)
        door.fleet.decode.hold_before(2)
        body = COMPLETION | {"stream": True}
        async with door.client.stream("POST", "/v1/completions", json=body) as reply:
            await anext(reply.aiter_lines())
        await door.fleet.quiet()
        call = door.fleet.stub.StreamGenerate(
            pb.StreamGenerateRequest(request=pb.GenerateRequest(text="x"))
        )
        await call.read()
        call.cancel()
        await door.fleet.quiet()
        found = lines(caplog)
        assert [line["status"] for line in found] == 2 * ["INVALID_ARGUMENT"] + 2 * ["CANCELLED"]
        assert [line["field"] for line in found[:2]] == ["sampling.top_p", "unknown"]
        assert all(line["completion_tokens"] in (1, 2) for line in found[2:])
        await door.fleet.prefill.die()
        await door.post("/v1/completions", **COMPLETION)
        last = lines(caplog)[-1]
        assert last["status"] == "UNAVAILABLE" and last["reason"]


async def test_no_text_is_logged_unless_asked(
    start_door: StartDoor, served_model: ServedModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": SECRET}]}
    bad: list[dict[str, Any]] = [
        {"prompt": SECRET, "stop": [SECRET * 100]},
        {"prompt": SECRET, "response_format": {"type": SECRET}},
        {"prompt": {SECRET: SECRET}},
    ]
    for log_prompts in (False, True):
        caplog.clear()
        async with start_door(says(served_model, SECRET), log_prompts=log_prompts) as door:
            await door.complete(prompt=SECRET)
            await door.chat(**chat)
            if not log_prompts:
                for body in bad:
                    assert (await door.post("/v1/completions", **body)).status_code == 400
                with pytest.raises(grpc.aio.AioRpcError):
                    await door.fleet.stub.Generate(
                        pb.GenerateRequest(text=SECRET, cache_salt=SECRET * 100)
                    )
        text = "\n".join(f"{r.getMessage()} {vars(r).get('fields')}" for r in caplog.records)
        assert (SECRET in text) == log_prompts
