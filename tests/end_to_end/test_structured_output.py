"""Outputs under a grammar, through both workers: C30, C37, and tool calls that must come."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest

from checkpoints import scripted, tiny_llama
from checkpoints.tokenizer import IM_END
from end_to_end.fleet import running_fleet
from end_to_end.prompts import GREEDY, expected, prompt_of, streamed
from end_to_end.test_text import WAYS, ask, speaker
from end_to_end.vocabulary import id_of, saying, spelled, word_tokenizer
from grammar.test_hostile import REFUSED
from octavo import LLM, SamplingParams
from octavo.client import AsyncClient, OctavoError
from text.chat_templates import HERMES_CHAT, LLAMA3_CHAT

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = [{"role": "user", "content": "What is 1 and 2? " * 8}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}},
                "required": ["a", "b"],
                "additionalProperties": False,
                "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": 'größe "x"',
            "parameters": {
                "properties": {"farbe": {"enum": ["rot", "grün", "</tool_call>"]}},
                "required": ["farbe"],
                "additionalProperties": False,
            },
        },
    },
]
SCHEMAS: dict[str, Any] = {
    tool["function"]["name"]: tool["function"]["parameters"]  # type: ignore[index]
    for tool in TOOLS
}


@WAYS
async def test_the_first_token_completes_the_grammar(tmp_path: Path, local_tokens: int) -> None:
    """C30: it comes from the prefill worker; then only the end may come."""
    words = ["yes", "no"]
    tokenizer = word_tokenizer(words)
    yes, no = (id_of(tokenizer, spelled(word)) for word in words)
    async with speaker(saying(tmp_path / "m", tokenizer, [yes, no]), local_tokens) as (_, client):
        assert (await ask(client)).token_ids == [yes, no, IM_END]
        for choice, max_tokens, token_ids, reason in (
            (["yes", "never"], 9, [yes, IM_END], "stop"),
            (["no"], 9, [no, IM_END], "stop"),
            (["yes"], 1, [yes], "length"),
            (["yes"], 2, [yes, IM_END], "stop"),
        ):
            reply = await ask(client, choice=choice, max_tokens=max_tokens)
            assert (reply.token_ids, reply.finish_reason) == (token_ids, reason)


async def test_bad_grammars_are_refused_in_time_and_hurt_nobody(tmp_path: Path) -> None:
    """C37: while they come, other requests' tokens are exact and keep coming."""
    model = tiny_llama(tmp_path / "llama")
    async with (
        running_fleet(model) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        prompt = prompt_of(40)
        tokens = expected(model, prompt, 400)
        neighbour = asyncio.create_task(streamed(client, prompt, max_tokens=400, **GREEDY))
        valid: dict[str, Any] = {"regex": "[a-c]{2}", "seed": 1, "max_tokens": 9}
        before = await client.generate(prompt, **valid)
        assert before.finish_reason == "stop" and len(before.text) == 2
        for name, (field, text) in REFUSED.items():
            if len(text) > 100_000:
                continue
            began = time.monotonic()
            with pytest.raises(OctavoError) as refused:
                await client.generate(prompt, **{field: text})  # type: ignore[arg-type]
            assert time.monotonic() - began < 2.0, name
            assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT, name
            assert refused.value.field == f"sampling.{field}"
        assert (await neighbour).token_ids == tokens
        after = await client.generate(prompt, **valid)
        assert after.token_ids == before.token_ids
        await fleet.wait_until_quiet()


def check_calls(calls: list[tuple[str, str]], names: set[str]) -> None:
    assert calls
    for name, arguments in calls:
        assert name in names
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("template", [HERMES_CHAT, LLAMA3_CHAT], ids=["hermes", "llama3_json"])
async def test_required_calls_always_parse_and_follow_their_schema(
    tmp_path: Path, template: str
) -> None:
    """A model of random weights, which knows nothing of tools."""
    model = tiny_llama(tmp_path / "llama")
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    format = "hermes" if template is HERMES_CHAT else "llama3_json"
    one: Any = {"type": "function", "function": {"name": 'größe "x"'}}
    llm = LLM(str(model), dtype="float32", device="cpu", num_blocks=512, tool_call_format=format)
    async with (
        running_fleet(model) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        for choice, names in (("required", set(SCHEMAS)), (one, {'größe "x"'})):
            num_ended = 0
            for seed in range(2):
                fields: dict[str, Any] = {"seed": seed, "max_tokens": 250}
                whole = await client.generate(CHAT, tools=TOOLS, tool_choice=choice, **fields)
                found = [(call.name, call.arguments_json) for call in whole.tool_calls]
                if whole.finish_reason == "tool_calls":
                    num_ended += 1
                    assert whole.text == ""
                    check_calls(found, names)
                    assert len(found) == 1 or choice == "required"
                else:
                    assert whole.finish_reason == "length"
                (local,) = llm.chat(
                    CHAT, SamplingParams(**fields), False, tools=TOOLS, tool_choice=choice
                )
                assert local.outputs[0].token_ids == whole.token_ids
                assert [(c.name, c.arguments) for c in local.outputs[0].tool_calls] == found
            assert num_ended == 2 or choice == "required"
        free = await client.generate(CHAT, tools=TOOLS, seed=0, max_tokens=40)
        assert not free.tool_calls
        await fleet.wait_until_quiet()


async def test_the_documents_example_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that writes `"` when it may, so that strings end."""
    page = (Path(__file__).parents[2] / "docs" / "structured_output.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    quote = 3 + ord('"') - ord("!")
    model = scripted(tmp_path / "m", {}, default=quote)
    async with running_fleet(model) as fleet:
        code = code.replace("127.0.0.1:50051", fleet.address)
        await asyncio.to_thread(exec, code, {})
        await fleet.wait_until_quiet()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("stop {'city': '', 'country': '', 'is_capital': ")
    assert second in ("yes", "no")
