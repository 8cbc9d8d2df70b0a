"""Chats with tools in the OpenAI API's shape, and the calls that come back."""

from typing import Any

import pytest

from octavo.client import Completion, FinishReason
from octavo.client.request import generate_request, tokenize_request
from octavo.client.transcript import Transcript
from octavo.inference.v1 import inference_pb2 as pb

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Looks outside.", "parameters": SCHEMA},
}
SCHEMA_JSON = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
USER = {"role": "user", "content": "Weather?"}
CALL = pb.ToolCall(id="call_1", name="weather", arguments_json='{"city": "Köln"}')


def test_tools_and_options_go_into_the_chat() -> None:
    fields: Any = {
        "tools": [TOOL],
        "tool_choice": "none",
        "add_generation_prompt": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0.0,
    }
    request = generate_request([USER], None, fields)
    assert request.chat == pb.ChatMessages(
        messages=[pb.ChatMessage(role="user", content="Weather?")],
        tools=[pb.Tool(name="weather", description="Looks outside.", parameters_json=SCHEMA_JSON)],
        tool_choice=pb.TOOL_CHOICE_NONE,
        add_generation_prompt=False,
        chat_template_kwargs_json='{"enable_thinking": false}',
    )
    assert request.sampling.HasField("temperature")
    tokenized = tokenize_request([USER], "", True, {"tools": [TOOL["function"]]})  # type: ignore[list-item]
    assert tokenized.chat.tools == request.chat.tools
    assert tokenized.chat.tool_choice == pb.TOOL_CHOICE_AUTO
    assert not tokenized.chat.HasField("add_generation_prompt")


def test_calls_and_results_go_into_messages() -> None:
    function = {"name": "weather", "arguments": '{"city": "Köln"}'}
    chat: Any = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "rain"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "?"}],
        },
    ]
    sent = generate_request(chat, None, {"continue_final_message": True}).chat
    assert sent.continue_final_message
    assert list(sent.messages[1].tool_calls) == [CALL]
    assert sent.messages[2] == pb.ChatMessage(
        role="tool", tool_call_id="call_1", name="weather", content="rain"
    )
    assert [part.text for part in sent.messages[3].content_parts] == ["and", "?"]


@pytest.mark.parametrize(
    ("choice", "field", "value"),
    [
        ("auto", "tool_choice", pb.TOOL_CHOICE_AUTO),
        ("required", "tool_choice", pb.TOOL_CHOICE_REQUIRED),
        ({"type": "function", "function": {"name": "f"}}, "tool_choice_name", "f"),
    ],
)
def test_every_choice_is_sent_for_the_service_to_judge(
    choice: Any, field: str, value: object
) -> None:
    assert getattr(generate_request([USER], None, {"tool_choice": choice}).chat, field) == value


def test_mistakes_are_named_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="tool_choice must be one of auto, none, required"):
        generate_request([USER], None, {"tool_choice": "any"})
    with pytest.raises(ValueError, match=r"tools\[0\].parameters is no JSON"):
        generate_request([USER], None, {"tools": [{"name": "f", "parameters": "{"}]})
    with pytest.raises(ValueError, match=r"messages\[0\].role"):
        generate_request([{"content": "x"}], None, {})
    with pytest.raises(ValueError, match="only chats have tools"):
        generate_request("text", None, {"tools": [TOOL]})
    with pytest.raises(ValueError, match="only chats have continue_final_message"):
        generate_request([1, 2], None, {"continue_final_message": True})


def check(completion: Completion) -> None:
    assert (completion.text, completion.finish_reason) == ("I look.", FinishReason.TOOL_CALLS)
    [call] = completion.tool_calls
    assert (call.id, call.name, call.arguments) == ("call_1", "weather", {"city": "Köln"})
    again = generate_request([USER, completion.message], None, {}).chat.messages[1]
    assert again == pb.ChatMessage(role="assistant", content="I look.", tool_calls=[CALL])


def test_calls_come_back_whole_and_streamed() -> None:
    candidate = pb.Candidate(
        text="I look.", finish_reason=pb.FINISH_REASON_TOOL_CALLS, tool_calls=[CALL]
    )
    check(Completion.of(pb.GenerateResponse(candidates=[candidate])))
    response = pb.StreamGenerateResponse
    transcript = Transcript()
    deltas = [
        transcript.take(message)
        for message in (
            response(started=response.Started(model="m")),
            response(delta=response.Delta(text="I look.", token_ids=[1])),
            response(delta=response.Delta(token_ids=[2], tool_calls=[CALL])),
            response(finished=response.Finished(finish_reason=pb.FINISH_REASON_TOOL_CALLS)),
            response(completed=response.Completed()),
        )
    ]
    assert [len(delta.tool_calls) for delta in deltas if delta] == [0, 1]
    check(transcript.completion)


def test_without_calls_the_message_is_plain() -> None:
    completion = Completion.of(pb.GenerateResponse(candidates=[pb.Candidate(text="Hi")]))
    assert completion.message == {"role": "assistant", "content": "Hi"}
