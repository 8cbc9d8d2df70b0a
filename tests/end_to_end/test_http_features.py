"""What requests over gRPC can ask for, over HTTP: samples, forms, forced calls, adapters; C27."""

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import tiny_llama
from checkpoints.adapters import adapted_run, tiny_adapter
from end_to_end.prompts import GREEDY, expected, prompt_of
from end_to_end.test_http import Doors, both_doors
from end_to_end.test_structured_output import CHAT, TOOLS, check_calls
from text.chat_templates import HERMES_CHAT

pytest.importorskip("starlette", reason="octavo[http] is not installed")
pytestmark = pytest.mark.asyncio(loop_scope="session")

N = 3
HOT: dict[str, Any] = {"temperature": 1.5, "seed": 40, "max_tokens": 30}


async def chat(doors: Doors, **body: Any) -> dict[str, Any]:
    reply = await doors.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def chat_events(doors: Doors, **body: Any) -> list[dict[str, Any]]:
    reply = await doors.http.post("/v1/chat/completions", json=body | {"stream": True})
    assert reply.status_code == 200, reply.text
    *events, last = [line for line in reply.text.split("\n\n") if line]
    assert last == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_usage_of_three_choices_counts_the_prompt_once(llama: Path) -> None:
    """C27, n = 3: samples that end by a stop string and by length; whole and streamed."""
    prompts = [prompt_of(37), prompt_of(20)]
    fields: dict[str, Any] = {"n": N, **HOT, "stop": ["k"], "logprobs": 1}
    body: dict[str, Any] = {"prompt": prompts, "return_token_ids": True, **fields}
    async with both_doors(llama, decode={"local_prefill_max_tokens": 0}) as doors:
        over_grpc = [await doors.grpc.generate(prompt, **fields) for prompt in prompts]
        candidates = [one for completion in over_grpc for one in completion.candidates]
        assert len({one.finish_reason for one in candidates}) == 2
        whole = await doors.whole(**body)
        assert [choice["index"] for choice in whole["choices"]] == list(range(2 * N))
        for choice, candidate in zip(whole["choices"], candidates, strict=True):
            assert choice["token_ids"] == candidate.token_ids
            assert choice["text"] == candidate.text
            assert choice["finish_reason"] == candidate.finish_reason.partition("_")[0]
            assert candidate.logprobs is not None
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(
                [row.logprob for row in candidate.logprobs], abs=1e-4
            )
        assert whole["usage"]["prompt_tokens"] == 57
        num_tokens = sum(len(one.token_ids) for one in candidates)
        assert whole["usage"]["completion_tokens"] == num_tokens

        *events, last = await doors.streamed(**body, stream_options={"include_usage": True})
        assert last["choices"] == [] and all(event["usage"] is None for event in events)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert last["usage"][name] == whole["usage"][name]
        for choice in whole["choices"]:
            check_streamed(choice, [event["choices"][0] for event in events])


def check_streamed(choice: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    """The parts of a choice are the whole of it, wherever they stand among the others'."""
    own = [part for part in parts if part["index"] == choice["index"]]
    assert "".join(part["text"] for part in own) == choice["text"]
    assert [i for part in own for i in part.get("token_ids", ())] == choice["token_ids"]
    assert [part["finish_reason"] for part in own if part["finish_reason"]] == [
        choice["finish_reason"]
    ]
    assert own[-1]["finish_reason"] and own[-1]["stop_reason"] == choice["stop_reason"]
    scores = [part["logprobs"] for part in own if part["logprobs"]]
    for name in ("tokens", "text_offset"):
        assert [v for part in scores for v in part[name]] == choice["logprobs"][name]


async def test_the_best_of_several_are_those_of_grpc(llama: Path) -> None:
    prompt = prompt_of(37)
    async with both_doors(llama) as doors:
        for n in (1, 2):
            over_grpc = await doors.grpc.generate(prompt, n=n, best_of=5, **HOT)
            whole = await doors.whole(prompt=prompt, n=n, best_of=5, return_token_ids=True, **HOT)
            assert [choice["token_ids"] for choice in whole["choices"]] == [
                one.token_ids for one in over_grpc.candidates
            ]
            assert [choice["index"] for choice in whole["choices"]] == list(range(n))
            assert not any(choice["logprobs"] for choice in whole["choices"])
            # All that ran counts.
            assert whole["usage"]["completion_tokens"] == over_grpc.usage.completion_tokens > 60


async def test_a_chat_has_a_role_and_an_end_for_each_choice(tmp_path: Path) -> None:
    async with both_doors(tiny_llama(tmp_path / "llama")) as doors:
        body: dict[str, Any] = {"messages": CHAT, "n": N, **HOT}
        whole = await chat(doors, **body)
        events = await chat_events(doors, **body)
        for index, choice in enumerate(whole["choices"]):
            assert choice["index"] == index
            own = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            text = "".join(part["delta"].get("content", "") for part in own)
            assert text == choice["message"]["content"]
            assert [part["finish_reason"] for part in own if part["finish_reason"]] == ["length"]
        assert len({choice["message"]["content"] for choice in whole["choices"]}) == N


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"guided_json": SCHEMA},
    {"structured_outputs": {"regex": '\\{"a":[0-9]\\}'}},
    {"structured_outputs": {"choice": ['{"a": 1}', '{"a": 22}']}},
    {"guided_grammar": 'root ::= "{" "\\"a\\"" ":" [0-9] "}"'},
]


async def test_an_output_has_the_form_that_was_asked_for(tmp_path: Path) -> None:
    """A model of random weights, which knows nothing of JSON."""
    async with both_doors(tiny_llama(tmp_path / "llama")) as doors:
        for form in FORMS:
            sampled: dict[str, Any] = {"seed": 3, "max_tokens": 200, **form}
            [choice] = (await chat(doors, messages=CHAT, **sampled))["choices"]
            assert choice["finish_reason"] == "stop"
            assert 0 <= json.loads(choice["message"]["content"])["a"] <= 99
            [choice] = (await doors.whole(prompt="A number:", **sampled))["choices"]
            assert 0 <= json.loads(choice["text"])["a"] <= 99
        any_object = {"response_format": {"type": "json_object"}, "seed": 3, "max_tokens": 60}
        [choice] = (await chat(doors, messages=CHAT, **any_object))["choices"]
        assert choice["message"]["content"].lstrip().startswith("{")
        wrong = {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}
        reply = await doors.http.post(
            "/v1/chat/completions", json={"messages": CHAT, "response_format": wrong}
        )
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "json_schema"


async def test_calls_that_must_come_come(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "llama")
    (model / "chat_template.jinja").write_text(HERMES_CHAT, encoding="utf-8")
    one: Any = {"type": "function", "function": {"name": "add"}}
    async with both_doors(model) as doors:
        body: dict[str, Any] = {"messages": CHAT, "tools": TOOLS, "seed": 1, "max_tokens": 400}
        [choice] = (await chat(doors, **body, tool_choice=one))["choices"]
        calls = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        check_calls([tuple(call["function"].values()) for call in calls], {"add"})
        events = await chat_events(doors, **body, tool_choice=one)
        deltas = [event["choices"][0]["delta"] for event in events]
        streamed = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert [call["function"] for call in streamed] == [call["function"] for call in calls]
        over_grpc = await doors.grpc.generate(
            CHAT, tools=TOOLS, tool_choice="required", seed=1, max_tokens=400
        )
        [choice] = (await chat(doors, **body, tool_choice="required"))["choices"]
        assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [
            call.arguments_json for call in over_grpc.tool_calls
        ]
        reply = await doors.http.post(
            "/v1/chat/completions", json={"messages": CHAT, "tool_choice": "required"}
        )
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "tool_choice"


async def test_a_model_that_is_an_adapter_chooses_it(llama: Path, tmp_path: Path) -> None:
    adapter = tiny_adapter(llama, tmp_path / "sql", 3)
    prompt = prompt_of(20)
    worker = {"lora": (f"sql={adapter}",)}
    async with both_doors(llama, prefill=worker, decode=worker) as doors:
        fields: dict[str, Any] = {"prompt": prompt, "return_token_ids": True, **GREEDY}
        models = (await doors.http.get("/v1/models")).json()["data"]
        base = models[0]["id"]
        assert [(m["id"], m["parent"]) for m in models] == [(base, None), ("sql", base)]
        assert (await doors.http.get("/v1/models/sql")).json() == models[1]
        for model, told, tokens in (
            ("sql", "sql", adapted_run(llama, adapter, prompt, 12).token_ids),
            (base, base, expected(llama, prompt, 12)),
            ("", base, expected(llama, prompt, 12)),
        ):
            whole = await doors.whole(model=model, max_tokens=12, **fields)
            assert whole["model"] == told
            assert whole["choices"][0]["token_ids"] == tokens
            events = await doors.streamed(model=model, max_tokens=12, **fields)
            assert {event["model"] for event in events} == {told}
            ids = [i for event in events for i in event["choices"][0].get("token_ids", ())]
            assert ids == tokens
        reply = await doors.http.post("/v1/completions", json=fields | {"model": "nosql"})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (404, "model_not_found")
