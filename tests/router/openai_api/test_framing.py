"""Bytes and members of answers, streamed and whole, beside gRPC's."""

from typing import Any

from octavo.inference.v1 import inference_pb2 as pb
from octavo.router.model import ServedModel
from router.openai_api.conftest import CHAT, COMPLETION, StartDoor, says

TEXT = 'A line,\nthen "quoted" and 🙂.'


async def test_a_chat_is_streamed_as_events_that_join_to_the_whole(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    tokens = says(served_model, TEXT)
    async with start_door(tokens) as door:
        whole = await door.chat()
        [choice] = whole["choices"]
        assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        assert (whole["object"], whole["model"]) == ("chat.completion", "tiny")
        assert whole["id"].startswith("chatcmpl-")

        events = await door.events("/v1/chat/completions", **CHAT)
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert len({event["id"] for event in events}) == 1
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("content", "") for delta in deltas) == TEXT
        reasons = [event["choices"][0]["finish_reason"] for event in events]
        assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}
        assert not any("usage" in event for event in events)

        chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="How is it?")])
        over_grpc = await door.fleet.stub.Generate(pb.GenerateRequest(chat=chat))
        assert over_grpc.candidates[0].text == TEXT
        assert whole["usage"]["prompt_tokens"] == over_grpc.usage.prompt_tokens
        assert whole["usage"]["completion_tokens"] == len(tokens)
        await door.fleet.quiet()


async def test_usage_comes_once_and_last_if_asked_for(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, TEXT)) as door:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
            options = {"stream_options": {"include_usage": True}}
            *events, last = await door.events(path, **body, **options)
            assert all(event["usage"] is None for event in events)
            assert last["choices"] == []
            whole = (await door.post(path, **body)).json()
            assert last["usage"] == whole["usage"]
            assert last["usage"]["total_tokens"] == (
                last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
            )


async def test_a_completion_says_how_it_ended(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, TEXT)) as door:
        for fields, text, reason, stop in (
            ({}, TEXT, "stop", None),
            ({"stop": ["then"]}, "A line,\n", "stop", "then"),
            ({"stop": "then", "include_stop_str_in_output": True}, "A line,\nthen", "stop", "then"),
            ({"max_tokens": 1}, "A", "length", None),
        ):
            [choice] = (await door.complete(**fields))["choices"]
            said = (choice["text"], choice["finish_reason"], choice["stop_reason"])
            assert said == (text, reason, stop)
            events = await door.events("/v1/completions", **COMPLETION | fields)
            choices = [event["choices"][0] for event in events]
            assert "".join(choice["text"] for choice in choices) == text
            assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == (reason, stop)


async def test_several_prompts_are_choices_in_their_order(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, TEXT)) as door:
        for prompt in (["One", "Two", "Three"], [[5], [6, 7], [8]]):
            whole = await door.complete(prompt=prompt)
            assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
            assert {choice["text"] for choice in whole["choices"]} == {TEXT}
            options = {"stream_options": {"include_usage": True}}
            events = await door.events(
                "/v1/completions", **COMPLETION | {"prompt": prompt} | options
            )
            texts = ["", "", ""]
            for choice in (event["choices"][0] for event in events[:-1]):
                texts[choice["index"]] += choice["text"]
            assert texts == 3 * [TEXT]
            assert events[-1]["usage"] == whole["usage"]
        ids = [list(spec.prompt_token_ids) for spec in door.fleet.prefill.specs[-3:]]
        assert sorted(ids) == [[5], [6, 7], [8]]


async def test_the_callers_id_is_told_back(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, TEXT)) as door:
        for stream in (False, True):
            reply = await door.client.post(
                "/v1/completions",
                json=COMPLETION | {"stream": stream},
                headers={"x-request-id": "mine-7"},
            )
            assert reply.headers["x-request-id"] == "mine-7"
            assert '"cmpl-mine-7"' in reply.text
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (await door.complete(request_id="other"))["id"] == "cmpl-other"


async def test_token_ids_are_told_if_asked_for(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    tokens = says(served_model, TEXT)
    prompt = served_model.tokenizer.encode("How is it?")
    async with start_door(tokens) as door:
        [choice] = (await door.complete(return_token_ids=True))["choices"]
        assert (choice["token_ids"], choice["prompt_token_ids"]) == (tokens, prompt)
        assert choice["text"] == TEXT
        whole = await door.chat(return_token_ids=True)
        assert whole["choices"][0]["token_ids"] == tokens
        chat = list(door.fleet.prefill.specs[-1].prompt_token_ids)
        assert whole["prompt_token_ids"] == chat
        events = await door.events("/v1/completions", **COMPLETION, return_token_ids=True)
        assert events[0]["choices"][0]["prompt_token_ids"] == prompt
        found: list[Any] = sum((event["choices"][0].get("token_ids", []) for event in events), [])
        assert found == tokens


async def test_echo_puts_the_prompt_before_the_text(
    start_door: StartDoor, served_model: ServedModel
) -> None:
    async with start_door(says(served_model, TEXT)) as door:
        assert (await door.complete(echo=True))["choices"][0]["text"] == "How is it?" + TEXT
        events = await door.events("/v1/completions", **COMPLETION, echo=True)
        assert "".join(event["choices"][0]["text"] for event in events) == "How is it?" + TEXT


async def test_models_health_and_metrics(start_door: StartDoor, served_model: ServedModel) -> None:
    async with start_door(says(served_model, TEXT)) as door:
        listed = (await door.client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["tiny"]
        assert listed["data"][0]["max_model_len"] == 1024
        assert (await door.client.get("/v1/models/tiny")).json() == listed["data"][0]
        assert (await door.client.get("/v1/models/huge")).status_code == 404
        assert (await door.client.get("/health")).json() == {"status": "ok"}
        open_metrics = {"accept": "application/openmetrics-text; version=1.0.0"}  # Prometheus 2
        metrics = await door.client.get("/metrics", headers=open_metrics)
        assert '\nvllm:prompt_tokens_total{model_name="tiny"} 0.0\n' in metrics.text
        assert "# HELP" in metrics.text and metrics.headers["content-type"].startswith("text/plain")


async def test_health_is_503_without_workers(start_door: StartDoor) -> None:
    async with start_door([5], prefills=0, decodes=0, wait_ready=False) as door:
        assert (await door.client.get("/health")).status_code == 503
