"""Tool calls from a model to the caller and back, in process and through both workers."""

import asyncio
from pathlib import Path

import pytest

from checkpoints.tokenizer import IM_END
from end_to_end.fleet import running_fleet
from end_to_end.vocabulary import id_of, saying, spelled, word_tokenizer
from octavo import LLM, SamplingParams
from octavo.client import AsyncClient
from text.chat_templates import HERMES_CHAT, LLAMA3_CHAT

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CHAT = [{"role": "user", "content": "What is 1 and 2? " * 8}]
ARGUMENTS = '{"b": [1, 2.50], "text": "</tool_call> é"}'
# How the model's tokens cut the call: inside markers, names and characters.
HERMES_WORDS = [
    "Well.",
    "<tool",
    '_call>{"name": "a',
    f'dd", "arguments": {ARGUMENTS}',
    "}</",
    "tool_call>",
]
LLAMA_WORDS = ['{"na', 'me": "add", "para', f'meters": {ARGUMENTS}', "}"]
CASES = pytest.mark.parametrize(
    ("template", "words", "text"),
    [(HERMES_CHAT, HERMES_WORDS, "Well."), (LLAMA3_CHAT, LLAMA_WORDS, "")],
    ids=["hermes", "llama3_json"],
)


def calling_model(path: Path, template: str, words: list[str]) -> tuple[Path, list[int]]:
    """A checkpoint that says these words after a newline, where the templates' prompts end."""
    tokenizer = word_tokenizer(words)
    token_ids = [id_of(tokenizer, spelled(word)) for word in words]
    model = saying(path, tokenizer, token_ids, start=id_of(tokenizer, spelled("\n")))
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    return model, [*token_ids, IM_END]


@pytest.mark.parametrize("local_tokens", [0, 1000], ids=["pulled", "local"])
@CASES
async def test_a_call_reaches_the_caller_and_its_result_the_model(
    tmp_path: Path, local_tokens: int, template: str, words: list[str], text: str
) -> None:
    model, token_ids = calling_model(tmp_path / "m", template, words)
    decode = {"local_prefill_max_tokens": local_tokens, "num_blocks": 256}
    async with (
        running_fleet(model, prefill={"num_blocks": 256}, decode=decode) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
    ):
        whole = await client.generate(CHAT, temperature=0.0, tools=TOOLS)
        assert (whole.text, whole.finish_reason) == (text, "tool_calls")
        assert [(call.name, call.arguments_json) for call in whole.tool_calls] == [
            ("add", ARGUMENTS)
        ]
        assert whole.token_ids == token_ids
        prompt = await client.tokenize(CHAT, tools=TOOLS)
        assert len(prompt) == whole.usage.prompt_tokens > len(await client.tokenize(CHAT))
        stream = client.stream(CHAT, temperature=0.0, tools=TOOLS)
        deltas = [delta async for delta in stream]
        assert "".join(delta.text for delta in deltas) == text
        assert [call.arguments for delta in deltas for call in delta.tool_calls] == [
            whole.tool_calls[0].arguments
        ]
        assert stream.completion.finish_reason == "tool_calls"
        result = {"role": "tool", "tool_call_id": whole.tool_calls[0].id, "content": "3"}
        again = await client.generate([*CHAT, whole.message, result], temperature=0.0, tools=TOOLS)
        assert again.token_ids == token_ids
        assert again.usage.prompt_tokens > whole.usage.prompt_tokens
        await fleet.wait_until_quiet()


@CASES
async def test_llm_returns_calls_as_the_service_does(
    tmp_path: Path, template: str, words: list[str], text: str
) -> None:
    model, token_ids = calling_model(tmp_path / "m", template, words)
    llm = LLM(str(model), dtype="float32", device="cpu", num_blocks=256)
    params = SamplingParams(temperature=0.0)
    [with_tools] = llm.chat(CHAT, params, use_tqdm=False, tools=TOOLS)
    output = with_tools.outputs[0]
    assert (output.text, output.finish_reason, output.token_ids) == (text, "tool_calls", token_ids)
    assert [(call.name, call.arguments) for call in output.tool_calls] == [("add", ARGUMENTS)]
    assert with_tools.prompt_token_ids == llm.tokenizer.encode_chat(CHAT, tools=TOOLS)
    [plain] = llm.chat(CHAT, params, use_tqdm=False)
    assert (plain.outputs[0].text, plain.outputs[0].finish_reason) == ("".join(words), "stop")
    params = SamplingParams(temperature=0.0, max_tokens=len(token_ids) - 1)
    [cut] = llm.chat(CHAT, params, use_tqdm=False, tools=TOOLS)
    assert (cut.outputs[0].finish_reason, len(cut.outputs[0].tool_calls)) == ("length", 1)


async def test_the_documents_example_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "chat_and_tools.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    words = [
        "<tool_call>",
        '{"name": "get_weather", ',
        '"arguments": {"city": "Ulm"}}',
        "</tool_call>",
    ]
    model, _ = calling_model(tmp_path / "m", HERMES_CHAT, words)
    scope: dict[str, object] = {}
    async with running_fleet(
        model, prefill={"num_blocks": 256}, decode={"num_blocks": 256}
    ) as fleet:
        code = code.replace("127.0.0.1:50051", fleet.address)
        await asyncio.to_thread(exec, code, scope)
        await fleet.wait_until_quiet()
    messages = scope["messages"]
    assert isinstance(messages, list) and len(messages) == 1 + 3 * 2  # it calls again each time
    assert messages[2]["content"] == "In Ulm it rains, 12 degrees."
