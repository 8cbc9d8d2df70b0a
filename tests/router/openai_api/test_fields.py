"""Members of a body reach the workers, or are known to change nothing; docs/http.md has all."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints import scripted
from octavo.inference.v1.inference_pb2 import GenerateRequest
from octavo.router.http import chat_request, completion_request, sampling
from octavo.router.http.fields import Fields
from octavo.router.model import ServedModel
from router.openai_api.conftest import CHAT, COMPLETION, StartDoor, says
from text.chat_templates import HERMES_CHAT

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Ulm"}}\n</tool_call>'
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "b": 1.0}}}
]

# Member, value, and what the workers' sampling field is then.
SAMPLING: list[tuple[str, Any, Any]] = [
    ("temperature", 0.5, 0.5),
    ("top_p", 0.25, 0.25),
    ("top_k", 7, 7),
    ("min_p", 0.5, 0.5),
    ("presence_penalty", 0.5, 0.5),
    ("frequency_penalty", -0.5, -0.5),
    ("repetition_penalty", 1.5, 1.5),
    ("max_tokens", 9, 9),
    ("min_tokens", 3, 3),
    ("seed", 11, 11),
    ("seed", -1, 2**64 - 1),
    ("ignore_eos", True, True),
    ("stop_token_ids", [5, 6], [5, 6]),
    ("allowed_token_ids", [5, 6, 2], [5, 6, 2]),
    ("logit_bias", {"5": 1.5}, {5: 1.5}),
    ("prompt_lookup", False, False),
]


async def test_sampling_members_reach_the_workers(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, "ok")) as door:
        for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
            for name, value, expected in SAMPLING:
                reply = await door.post(path, **body | {name: value})
                assert reply.status_code == 200, reply.text
                found = getattr(door.fleet.prefill.specs[-1].sampling, name)
                if isinstance(expected, list):
                    found = list(found)
                elif isinstance(expected, dict):
                    found = dict(found)
                assert found == expected, name


SCHEMA = {"type": "object", "properties": {"b": {"const": 1.0}, "a": {}}}
SCHEMA_JSON = '{"type": "object", "properties": {"b": {"const": 1.0}, "a": {}}}'


@pytest.mark.parametrize(
    ("members", "field", "value"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
         "json_schema", SCHEMA_JSON),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA_JSON),
        ({"guided_json": SCHEMA_JSON}, "json_schema", SCHEMA_JSON),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_grammar": "g"}, "ebnf_grammar", "g"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA_JSON),
        ({"structured_outputs": {"regex": "a+", "choice": None}}, "regex", "a+"),
        ({"structured_outputs": {"grammar": "g"}}, "ebnf_grammar", "g"),
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        ({"structured_outputs": {"json_object": True}}, "json_object", True),
        ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ["a", "b"]),
    ],
)  # fmt: skip
def test_every_way_to_ask_for_a_form_sets_its_field(
    members: dict[str, Any], field: str, value: Any
) -> None:
    request = GenerateRequest()
    fields = Fields(members)
    sampling.set_sampling(fields, request)
    fields.check_all_taken()
    found = getattr(request.sampling, field)
    assert (list(found.values) if field == "choice" else found) == value
    assert len(request.sampling.ListFields()) == 1


async def test_other_members_do_what_they_say(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, "ok, <|im_end|>")) as door:
        specs = door.fleet.prefill.specs
        await door.complete(cache_salt="a")
        await door.complete(cache_salt="b")
        await door.complete()
        assert len({spec.group_key for spec in specs}) == 3
        await door.complete(bad_words=["ok"])
        assert specs[-1].sampling.bad_words_ids
        assert (await door.complete(skip_special_tokens=False))["choices"][0]["text"].endswith(">")
        await door.chat(max_completion_tokens=7)
        assert specs[-1].sampling.max_tokens == 7
        num_prompt = (await door.complete())["usage"]["prompt_tokens"]
        assert (await door.complete(add_special_tokens=False))["usage"][
            "prompt_tokens"
        ] <= num_prompt


async def test_unset_limits_are_those_of_the_openai_api(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, "ok")) as door:
        await door.complete(max_tokens=None)
        assert door.fleet.prefill.specs[-1].sampling.max_tokens == 16
        await door.chat()
        spec = door.fleet.prefill.specs[-1]
        assert spec.sampling.max_tokens == 1024 - len(spec.prompt_token_ids)


async def test_what_changes_nothing_is_accepted(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    neutral = {
        name: values[0]
        for name, values in {**sampling.NEUTRAL, **completion_request.NEUTRAL}.items()
        if values
    }
    ignored = dict.fromkeys(sampling.IGNORED, "x") | {"metadata": {"a": "b"}, "store": True}
    nothing = {"logprobs": None, "n": 1, "best_of": 1, "response_format": {"type": "text"}}
    async with start_door(says(served_model, "ok")) as door:
        [choice] = (await door.complete(**neutral, **ignored, **nothing))["choices"]
        assert choice["text"] == "ok"
        neutral = {
            name: values[0]
            for name, values in {**sampling.NEUTRAL, **chat_request.NEUTRAL}.items()
            if values
        }
        whole = await door.chat(**neutral, **ignored, n=1, tool_choice="auto")
        assert whole["choices"][0]["message"]["content"] == "ok"


async def test_a_chat_goes_on_and_has_variables(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}]
    async with start_door(says(served_model, "ok")) as door:
        fields = {"messages": messages, "continue_final_message": True}
        await door.chat(**fields, add_generation_prompt=False, chat_template_kwargs={"deep": True})
        prompt = served_model.tokenizer.decode(
            list(door.fleet.prefill.specs[-1].prompt_token_ids), skip_special_tokens=False
        )
        assert prompt.endswith("It is")


async def test_text_parts_are_joined_for_templates_that_take_none(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    async with start_door(says(served_model, "ok")) as door:
        await door.chat(messages=[{"role": "user", "content": parts}])
        await door.chat(messages=[{"role": "user", "content": "One.\nTwo."}])
        first, second = door.fleet.prefill.specs
        assert first.prompt_token_ids == second.prompt_token_ids


@pytest.fixture(scope="module")
def tool_model(served_model: ServedModel, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    folder = scripted(tmp_path_factory.mktemp("tools") / "tiny", {}, max_position_embeddings=1024)
    (folder / "chat_template.jinja").write_text(HERMES_CHAT, encoding="utf-8")
    return replace(ServedModel.load(str(folder), "tiny"), fingerprint=served_model.fingerprint)


async def test_tool_calls_whole_and_streamed(
    start_door: StartDoor, tool_model: ServedModel
) -> None:
    async with start_door(says(tool_model, "I look.\n" + CALL + CALL), model=tool_model) as door:
        [choice] = (await door.chat(tools=TOOLS))["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"].strip() == "I look."
        calls = choice["message"]["tool_calls"]
        assert [call["function"] for call in calls] == 2 * [
            {"name": "look", "arguments": '{"at": "Ulm"}'}
        ]
        events = await door.events("/v1/chat/completions", **CHAT, tools=TOOLS)
        deltas = [event["choices"][0]["delta"] for event in events]
        streamed = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert [call["index"] for call in streamed] == [0, 1]
        assert [call["function"] for call in streamed] == [call["function"] for call in calls]
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"

        one = await door.chat(tools=TOOLS, parallel_tool_calls=False)
        assert len(one["choices"][0]["message"]["tool_calls"]) == 1
        text = await door.chat(tools=TOOLS, tool_choice="none")
        assert "<tool_call>" in text["choices"][0]["message"]["content"]
        again = [
            *CHAT["messages"],
            {"role": "assistant", "content": None, "tool_calls": calls[:1]},
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "rain"},
        ]
        await door.chat(tools=TOOLS, messages=again)
        prompt = tool_model.tokenizer.decode(list(door.fleet.prefill.specs[-1].prompt_token_ids))
        assert '"b": 1.0' in prompt and "rain" in prompt


def test_the_page_has_every_member() -> None:
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    known = (
        {name for name, _, _ in SAMPLING}
        | {"cache_salt", "bad_words", "skip_special_tokens", "include_stop_str_in_output", "n"}
        | {"best_of", "response_format", "structured_outputs", "tool_choice", "model"}
        | {"prompt_logprobs", "max_completion_tokens", "echo", "prompt", "messages", "tools"}
        | set(sampling.IGNORED)
        | sampling.NEUTRAL.keys()
        | chat_request.NEUTRAL.keys()
        | completion_request.NEUTRAL.keys()
    )
    assert known <= told, known - told
