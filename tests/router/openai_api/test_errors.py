"""What goes wrong is told by a status code and the OpenAI API's error object."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from octavo.router.http.connection import MAX_BODY_BYTES
from octavo.rpc.errors import Overloaded
from router.openai_api.conftest import CHAT, COMPLETION, Door, StartDoor

TOOL = {"type": "function", "function": {"name": "look"}}
USER = {"role": "user", "content": "x"}
COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": 1e300}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 2**40}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 5000}, "max_tokens"),
    ({"min_tokens": 101}, "min_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"stop": [""]}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop_token_ids": [384]}, "stop_token_ids"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"prompt_logprobs": 2, "stream": True}, "prompt_logprobs"),
    ({"bad_words": "x" * 300}, "bad_words"),
    ({"cache_salt": "x" * 300}, "cache_salt"),
    ({"priority": 1}, "priority"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [384]}, "prompt"),
    ({"prompt": [["a"]]}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"length_penalty": 2}, "length_penalty"),
    ({"tempurature": 1}, "tempurature"),
    ({"messages": [USER]}, "messages"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"all": 1}}, "stream_options.all"),
    ({"stream": "yes"}, "stream"),
    ({"request_id": "a\nb"}, "request_id"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"guided_regex": "a", "guided_json": {}}, "structured_outputs"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
    ({"guided_regex": "("}, "regex"),
    ({"guided_choice": []}, "choice"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
]
CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["x"]}, "messages[0]"),
    ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER | {"mood": "good"}]}, "messages[0].mood"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "body"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": 2}, "logprobs"),
    ({"tools": [TOOL]}, "messages"),  # this model's template takes none
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": TOOL}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]},
     "tools[0].parameters"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"echo": True}, "echo"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"tools": 1}}, "messages"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
    ({"prompt": "x"}, "prompt"),
]  # fmt: skip


async def check_refused(door: Door, path: str, body: dict[str, Any], param: str) -> None:
    content = json.dumps(body)
    reply = await door.client.post(
        path, content=content, headers={"content-type": "application/json"}
    )
    error = reply.json()["error"]
    assert reply.status_code == 400, (body, error)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, (body, error)
    assert param == "body" or param.rpartition(".")[2] in error["message"], (body, error)
    assert not any(name in error["message"] for name in ("sampling.", "output.", "chat."))


async def test_wrong_members_are_refused_by_name(start_door: StartDoor) -> None:
    async with start_door([5]) as door:
        for fields, param in COMPLETIONS:
            await check_refused(door, "/v1/completions", COMPLETION | fields, param)
        for fields, param in CHATS:
            await check_refused(door, "/v1/chat/completions", CHAT | fields, param)
        assert not door.fleet.prefill.specs


async def test_a_member_of_a_later_version_says_so(start_door: StartDoor) -> None:
    async with start_door([5]) as door:
        for fields, param in (
            ({"use_beam_search": True}, "use_beam_search"),
            ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
            ({"priority": 1}, "priority"),
        ):
            reply = await door.post("/v1/completions", **COMPLETION | fields)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (400, param)
            assert error["code"] == "unsupported_parameter"


async def test_wrong_requests_have_error_objects(start_door: StartDoor) -> None:
    json_type = {"content-type": "application/json"}
    async with start_door([5]) as door:
        client = door.client
        cases: list[tuple[httpx.Response, int]] = [
            (await client.post("/v1/completions", content=b"{", headers=json_type), 400),
            (await client.post("/v1/completions", content=b"[]", headers=json_type), 400),
            (await client.post("/v1/completions", content=b'{"a": NaN}', headers=json_type), 400),
            (await client.post("/v1/completions", content=b"{}"), 415),
            (await client.get("/v1/completions"), 405),
            (await client.post("/v1/embeddings", json={}), 404),
            (await door.post("/v1/completions", **COMPLETION | {"model": "huge"}), 404),
        ]
        too_long = b" " * (MAX_BODY_BYTES + 1)
        cases.append(
            (await client.post("/v1/completions", content=too_long, headers=json_type), 413)
        )
        for reply, status in cases:
            assert reply.status_code == status, reply.text
            assert reply.json()["error"]["message"]
        error = cases[-2][0].json()["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_overload_says_when_to_come_back(start_door: StartDoor) -> None:
    async with start_door([5]) as door:
        door.fleet.prefill.refusal = Overloaded("no room", 2.5)
        reply = await door.post("/v1/completions", **COMPLETION)
        assert reply.status_code == 429
        assert reply.json()["error"]["code"] == "rate_limit_exceeded"
        assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("3", "2500")


async def test_without_workers_the_service_is_unavailable(start_door: StartDoor) -> None:
    async with start_door([5], prefills=0, decodes=0, wait_ready=False) as door:
        for body in (COMPLETION, COMPLETION | {"stream": True}):
            reply = await door.post("/v1/completions", **body)
            assert reply.status_code == 503
            assert reply.json()["error"]["type"] == "server_error"


async def test_a_request_that_takes_too_long_is_ended(start_door: StartDoor) -> None:
    async with start_door([5, 6, 7], max_request_s=0.3) as door:
        door.fleet.prefill.hold_before(0)
        reply = await door.post("/v1/completions", **COMPLETION)
        assert reply.status_code == 504
        await door.fleet.quiet()


async def test_what_fails_in_a_stream_ends_it_with_an_error(start_door: StartDoor) -> None:
    async with start_door([5, 6, 7]) as door:
        door.fleet.decode.hold_before(2)
        body = COMPLETION | {"stream": True}
        async with door.client.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.aiter_lines()
            async for line in lines:
                if line:
                    break
            await asyncio.wait_for(door.fleet.decode.wait_open(1), 5)
            await door.fleet.decode.die()
            rest = [line async for line in lines if line]
        error = json.loads(rest[-1].removeprefix("data: "))["error"]
        assert error["type"] == "server_error" and "d0" in error["message"]
        assert not any("[DONE]" in line for line in rest)


async def test_a_defect_is_told_without_its_text(
    start_door: StartDoor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("secret")

    async with start_door([5]) as door:
        monkeypatch.setattr(door.fleet.router.generator, "replies", fail)
        reply = await door.post("/v1/completions", **COMPLETION)
        assert reply.status_code == 500 and "secret" not in reply.text
        assert reply.json()["error"]["type"] == "server_error"
        assert "KeyError: 'secret'" in caplog.text
