"""Tools through the router: in the prompt, and out of the output as messages."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints import scripted, tiny_tokenizer, write_tokenizer
from octavo.grammar.compiler import Compiler
from octavo.grammar.constraint import Constraint
from octavo.grammar.vocabulary import Vocabulary
from octavo.inference.v1 import inference_pb2 as pb
from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.text.tool_calls import HERMES, LLAMA3_JSON
from router.test_requests import named_field, refusal
from router.wrong_chats import INVALID, TOOL, USER, WRONG_CHATS
from scripted_workers import EOS
from text.chat_templates import HERMES_CHAT

StartFleet = Callable[..., AbstractAsyncContextManager[Any]]

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Ulm"}}\n</tool_call>'


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """The fleet's model, with a template that knows tools."""
    folder = scripted(tmp_path_factory.mktemp("tools") / "tiny", {}, max_position_embeddings=1024)
    (folder / "chat_template.jinja").write_text(HERMES_CHAT, encoding="utf-8")
    return ServedModel.load(str(folder), "tiny")


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    folder = tmp_path_factory.mktemp("vocabulary")
    write_tokenizer(folder, tiny_tokenizer(384))
    return Compiler(Vocabulary.load(folder, 384, [EOS]))


def says(model: ServedModel, text: str) -> list[int]:
    return [*model.tokenizer.encode(text, add_special_tokens=False), EOS]


def request(output: pb.OutputOptions | None = None, **chat: Any) -> pb.GenerateRequest:
    chat = {"messages": [USER], "tools": [TOOL]} | chat
    sampling = pb.SamplingParams(max_tokens=chat.pop("max_tokens", 500), stop=chat.pop("stop", []))
    return pb.GenerateRequest(chat=pb.ChatMessages(**chat), sampling=sampling, output=output)


def named(calls: Any) -> list[tuple[str, str]]:
    calls = list(calls)
    assert all(call.id.startswith("call_") for call in calls)
    return [(call.name, call.arguments_json) for call in calls]


LOOK = [("look", '{"at": "Ulm"}')]


async def test_calls_leave_the_text_unary_and_streamed(
    start_fleet: StartFleet, served_model: ServedModel
) -> None:
    tokens = says(served_model, "I look.\n" + CALL)
    async with start_fleet(tokens) as fleet:
        whole = (await fleet.stub.Generate(request())).candidates[0]
        assert (whole.text, named(whole.tool_calls)) == ("I look.\n", LOOK)
        assert whole.finish_reason == pb.FINISH_REASON_TOOL_CALLS
        assert (list(whole.token_ids), whole.matched_stop_token_id) == (tokens, EOS)
        messages = await fleet.stream(request())
        deltas = [message.delta for message in messages if message.HasField("delta")]
        assert "".join(delta.text for delta in deltas) == whole.text
        assert named(call for delta in deltas for call in delta.tool_calls) == LOOK
        [finished] = [message.finished for message in messages if message.HasField("finished")]
        assert finished.finish_reason == pb.FINISH_REASON_TOOL_CALLS
        # A reader gets text while the call is still being written.
        first = next(i for i, delta in enumerate(deltas) if delta.text)
        assert first < next(i for i, delta in enumerate(deltas) if delta.tool_calls)
        await fleet.quiet()


async def test_the_prompt_is_that_of_transformers(
    start_fleet: StartFleet, served_model: ServedModel
) -> None:
    call = pb.ToolCall(id="call_1", name="look", arguments_json='{"at":"Ulm","n":1.0}')
    messages = [
        USER,
        pb.ChatMessage(role="assistant", tool_calls=[call]),
        pb.ChatMessage(role="tool", tool_call_id="call_1", name="look", content="rain"),
    ]
    function = {"name": "look", "arguments": {"at": "Ulm", "n": 1.0}}
    chat = [
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "rain"},
    ]
    schema = {"type": "object", "b": 1}
    tool = {"name": "look", "description": "Looks.", "parameters": schema}
    expected = served_model.tokenizer._pretrained.apply_chat_template(
        chat,
        tools=[{"type": "function", "function": tool}],
        add_generation_prompt=True,
        return_dict=False,
        enable_thinking=False,
    )
    async with start_fleet(says(served_model, "ok")) as fleet:
        variables = '{"enable_thinking": false}'
        asked = request(messages=messages, chat_template_kwargs_json=variables)
        reply = await fleet.stub.Tokenize(pb.TokenizeRequest(chat=asked.chat))
        assert list(reply.token_ids) == expected
        whole = await fleet.stub.Generate(asked)
        assert (whole.candidates[0].text, whole.candidates[0].finish_reason) == (
            "ok",
            pb.FINISH_REASON_STOP,
        )
        assert list(fleet.prefill.specs[-1].prompt_token_ids) == expected


async def test_what_ended_the_output_otherwise_stays_its_reason(
    start_fleet: StartFleet, served_model: ServedModel
) -> None:
    tokens = says(served_model, CALL + CALL[:30] + " STOP" + CALL)
    num_tokens = len(served_model.tokenizer.encode(CALL, add_special_tokens=False))
    async with start_fleet(tokens) as fleet:
        cut = (await fleet.stub.Generate(request(max_tokens=num_tokens + 12))).candidates[0]
        assert cut.finish_reason == pb.FINISH_REASON_LENGTH
        assert named(cut.tool_calls) == LOOK
        assert cut.text and CALL[:30].startswith(cut.text)
        stopped = (await fleet.stub.Generate(request(stop=["STOP"]))).candidates[0]
        assert stopped.finish_reason == pb.FINISH_REASON_STOP_SEQUENCE
        assert (named(stopped.tool_calls), stopped.text) == (LOOK, CALL[:30] + " ")


async def test_calls_stay_text_where_none_are_wanted(
    start_fleet: StartFleet, served_model: ServedModel
) -> None:
    tokens = says(served_model, CALL)
    plain = request(tools=[])
    async with start_fleet(tokens) as fleet:
        for asked in (request(tool_choice=pb.TOOL_CHOICE_NONE), plain):
            whole = (await fleet.stub.Generate(asked)).candidates[0]
            assert (whole.text, list(whole.tool_calls)) == (CALL, [])
            assert whole.finish_reason == pb.FINISH_REASON_STOP
        specs = [*fleet.prefill.specs, *fleet.decode.specs]
        first, second = (list(spec.prompt_token_ids) for spec in specs)
        assert first == second, "tools that must not be called are not in the prompt"


async def test_calls_come_without_text_and_ids_too(
    start_fleet: StartFleet, served_model: ServedModel
) -> None:
    async with start_fleet(says(served_model, "I look. " + CALL)) as fleet:
        output = pb.OutputOptions(include_text=False, include_token_ids=False)
        messages = await fleet.stream(request(output))
        [delta] = [message.delta for message in messages if message.HasField("delta")]
        assert (delta.text, list(delta.token_ids), named(delta.tool_calls)) == ("", [], LOOK)


async def test_special_marker_tokens_are_seen_and_hidden_from_the_text(
    start_fleet: StartFleet, served_model: ServedModel, tmp_path: Path
) -> None:
    """Hermes 2 Pro has <tool_call> as a special token, Llama 3.1 <|python_tag|>."""
    tokenizer = tiny_tokenizer(380)
    tokenizer.add_special_tokens(["<tool_call>", "</tool_call>", "<|python_tag|>"])
    folder = scripted(tmp_path / "tiny", {}, tokenizer=tokenizer)
    (folder / "chat_template.jinja").write_text(HERMES_CHAT, encoding="utf-8")
    special = replace(served_model, tokenizer=ServedModel.load(str(folder), "tiny").tokenizer)
    object_text = '{"name": "look", "arguments": {"at": "Ulm"}}'
    for format, text in (
        (HERMES, f"<tool_call>{object_text}</tool_call>"),
        (LLAMA3_JSON, f"<|python_tag|>{object_text}"),
    ):
        tokens = says(special, text)
        assert set(tokens) & {380, 382}, "the marker is one token"
        served = replace(special, tool_call_format=format)
        async with start_fleet(tokens, model=served) as fleet:
            whole = (await fleet.stub.Generate(request())).candidates[0]
            assert (whole.text, named(whole.tool_calls)) == ("", LOOK)
            no_tools = (await fleet.stub.Generate(request(tools=[]))).candidates[0]
            assert no_tools.text == object_text


@pytest.mark.parametrize("name", ["auto", "hermes", "llama3_json", "none"])
async def test_a_model_tells_its_format(
    start_fleet: StartFleet, served_model: ServedModel, tmp_path: Path, name: str
) -> None:
    folder = scripted(tmp_path / "tiny", {})
    (folder / "chat_template.jinja").write_text(HERMES_CHAT, encoding="utf-8")
    loaded = ServedModel.load(str(folder), "tiny", name)
    served = replace(served_model, tool_call_format=loaded.tool_call_format)
    async with start_fleet(says(served_model, CALL), model=served) as fleet:
        facts = await fleet.stub.GetModel(pb.GetModelRequest())
        expected = {"auto": "hermes", "none": ""}.get(name, name)
        assert facts.tool_call_format == expected
        whole = (await fleet.stub.Generate(request())).candidates[0]
        assert named(whole.tool_calls) == (LOOK if expected == "hermes" else [])
        assert whole.text == ("" if expected == "hermes" else CALL)


def test_an_unknown_format_ends_the_start() -> None:
    with pytest.raises(ValueError, match="one of auto, hermes, llama3_json, none, got 'xml'"):
        RouterConfig(model="tiny", tool_call_format="xml")


@pytest.mark.parametrize(("chat", "code", "field"), WRONG_CHATS)
async def test_a_wrong_chat_is_refused_by_name(
    start_fleet: StartFleet, served_model: ServedModel, chat: Any, code: Any, field: str
) -> None:
    async with start_fleet(says(served_model, "ok")) as fleet:
        error = await refusal(fleet.stub.Generate(request(**chat), timeout=5))
        assert (error.code(), named_field(error)) == (code, field), error.details()
        assert field.rpartition(".")[2] in error.details()
        tokenized = pb.TokenizeRequest(chat=request(**chat).chat)
        again = await refusal(fleet.stub.Tokenize(tokenized, timeout=5))
        assert (again.code(), again.details()) == (code, error.details())
        assert not fleet.prefill.specs


REQUIRED = pb.TOOL_CHOICE_REQUIRED


@pytest.mark.parametrize("chosen", [{"tool_choice": REQUIRED}, {"tool_choice_name": "look"}])
async def test_a_required_call_reaches_the_workers_as_a_grammar(
    start_fleet: StartFleet,
    served_model: ServedModel,
    compiler: Compiler,
    chosen: dict[str, Any],
) -> None:
    async with start_fleet(says(served_model, CALL)) as fleet:
        whole = (await fleet.stub.Generate(request(**chosen))).candidates[0]
        assert (whole.text, whole.finish_reason) == ("", pb.FINISH_REASON_TOOL_CALLS)
        assert named(whole.tool_calls) == LOOK
        for worker in (fleet.prefill, fleet.decode):
            assert worker.specs[-1].sampling.WhichOneof("constraint") == "ebnf_grammar"
        text = fleet.decode.specs[-1].sampling.ebnf_grammar
        matcher = compiler.compile(Constraint("ebnf_grammar", text)).matcher()
        two = says(served_model, CALL + "\n" + CALL)
        assert matcher.num_allowed(says(served_model, CALL)) == len(says(served_model, CALL))
        assert (matcher.num_allowed(two) == len(two)) == ("tool_choice" in chosen)
        assert matcher.num_allowed(says(served_model, "I look.")) == 0
        await fleet.stub.Generate(request())
        assert fleet.decode.specs[-1].sampling.WhichOneof("constraint") is None


@pytest.mark.parametrize(
    ("chat", "sampling", "field"),
    [
        ({"tool_choice": REQUIRED}, {"regex": "a"}, "chat.tool_choice"),
        ({"tool_choice_name": "look"}, {"json_object": True}, "chat.tool_choice_name"),
        ({"tool_choice": REQUIRED}, {"ignore_eos": True}, "sampling.ignore_eos"),
        ({"tools": [pb.Tool(name="f", parameters_json='{"not": {}}')]}, {}, "chat.tools"),
        ({"tools": [pb.Tool(name="f", parameters_json='{"type": "array"}')]}, {}, "chat.tools"),
        ({"tools": [pb.Tool(name="f\ng")]}, {}, "chat.tools"),
    ],
)
async def test_a_call_that_cannot_be_required_is_refused_by_name(
    start_fleet: StartFleet,
    served_model: ServedModel,
    chat: dict[str, Any],
    sampling: dict[str, Any],
    field: str,
) -> None:
    async with start_fleet(says(served_model, "ok")) as fleet:
        wrong = request(**{"tool_choice": REQUIRED, **chat})
        wrong.sampling.MergeFrom(pb.SamplingParams(**sampling))
        error = await refusal(fleet.stub.Generate(wrong, timeout=5))
        assert (error.code(), named_field(error)) == (INVALID, field), error.details()
        assert not fleet.prefill.specs


async def test_a_model_whose_calls_are_not_known_cannot_be_made_to_call(
    start_fleet: StartFleet, served_model: ServedModel
) -> None:
    model = replace(served_model, tool_call_format=None)
    async with start_fleet(says(served_model, "ok"), model=model) as fleet:
        error = await refusal(fleet.stub.Generate(request(tool_choice=REQUIRED), timeout=5))
        assert (error.code(), named_field(error)) == (INVALID, "chat.tool_choice")
