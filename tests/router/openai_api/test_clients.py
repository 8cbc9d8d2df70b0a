"""The clients that people already have: the openai SDK, LangChain's and LlamaIndex's."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from checkpoints import scripted
from octavo.router.model import ServedModel
from router.openai_api.conftest import CHAT, StartDoor, says
from text.chat_templates import HERMES_CHAT

TEXT = "It is well, thank you."
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Ulm"}}\n</tool_call>'


class TestOpenAi:
    @pytest.fixture
    def openai(self) -> Any:
        return pytest.importorskip("openai", reason="the openai SDK is not installed")

    async def test_chats_and_completions(
        self, start_door: StartDoor, served_model: ServedModel, openai: Any
    ) -> None:
        async with (
            start_door(says(served_model, TEXT)) as door,
            openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none") as client,
        ):
            whole = await client.chat.completions.create(
                **CHAT, seed=7, max_completion_tokens=50, extra_body={"top_k": 5, "min_p": 0.1}
            )
            assert whole.choices[0].message.content == TEXT
            assert whole.choices[0].finish_reason == "stop"
            assert door.fleet.prefill.specs[-1].sampling.top_k == 5
            options: Any = {"stream": True, "stream_options": {"include_usage": True}}
            stream = await client.chat.completions.create(**CHAT, **options)
            chunks = [chunk async for chunk in stream]
            said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
            assert "".join(said) == TEXT
            assert chunks[-1].usage == whole.usage

            done = await client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=50)
            assert [choice.text for choice in done.choices] == [TEXT, TEXT]
            stream = await client.completions.create(
                model="tiny", prompt="a", max_tokens=50, **options
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(c.choices[0].text for c in chunks if c.choices) == TEXT
            assert chunks[-1].usage.completion_tokens == len(says(served_model, TEXT))
            assert [model.id async for model in client.models.list()] == ["tiny"]

    async def test_the_blocking_client_and_a_stream_that_is_left(
        self, start_door: StartDoor, served_model: ServedModel, openai: Any
    ) -> None:
        def leave(url: str) -> str:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
                stream = client.chat.completions.create(**CHAT, stream=True)
                for chunk in stream:
                    if chunk.choices[0].delta.content:
                        stream.close()
                        return str(chunk.choices[0].delta.content)
            return ""

        async with start_door([5, 6, 7], stream_interval_s=0.0) as door:
            door.fleet.decode.hold_before(4)
            assert await asyncio.to_thread(leave, door.url)
            await door.fleet.quiet()

    async def test_errors_have_the_sdks_types(
        self, start_door: StartDoor, served_model: ServedModel, openai: Any
    ) -> None:
        async with (
            start_door(says(served_model, TEXT)) as door,
            openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client,
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(**CHAT, temperature=-1)
            assert refused.value.param == "temperature"
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.chat.completions.create(**CHAT | {"model": "huge"})
            assert unknown.value.code == "model_not_found"
            door.fleet.decode.hold_before(2)
            stream = await client.chat.completions.create(**CHAT, stream=True)
            await anext(aiter(stream))
            await door.fleet.decode.wait_open(1)
            await door.fleet.decode.die()
            with pytest.raises(openai.APIError, match="d0"):
                async for _ in stream:
                    pass

    async def test_tools(self, start_door: StartDoor, tool_model: ServedModel, openai: Any) -> None:
        tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
        async with (
            start_door(says(tool_model, CALL), model=tool_model) as door,
            openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none") as client,
        ):
            whole = await client.chat.completions.create(**CHAT, tools=tools)
            message = whole.choices[0].message
            assert message.tool_calls[0].function.arguments == '{"at": "Ulm"}'
            answered = [
                *CHAT["messages"],
                message.model_dump(),  # with every member that the SDK knows
                {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
            ]
            again = await client.chat.completions.create(
                model="tiny", messages=answered, tools=tools
            )
            assert again.choices[0].finish_reason == "tool_calls"
            stream = await client.chat.completions.create(**CHAT, tools=tools, stream=True)
            deltas = [chunk.choices[0].delta async for chunk in stream]
            [call] = [call for delta in deltas for call in delta.tool_calls or ()]
            assert (call.index, call.function.name) == (0, "look")


class TestLangChain:
    async def test_chats_streams_and_tools(
        self, start_door: StartDoor, tool_model: ServedModel
    ) -> None:
        langchain = pytest.importorskip("langchain_openai", reason="needs octavo[http-clients]")

        def look(at: str) -> str:
            """Look at a place."""
            return at

        async with (
            start_door(says(tool_model, "I look. " + CALL), model=tool_model) as door,
            httpx.AsyncClient() as connections,
        ):
            chat = langchain.ChatOpenAI(
                model="tiny",
                base_url=f"{door.url}/v1",
                api_key="none",
                stream_usage=True,
                http_async_client=connections,
            )
            message = await chat.ainvoke("How is it?")
            assert message.content == "I look. " + CALL
            assert message.usage_metadata["total_tokens"] > 0
            pieces = [piece async for piece in chat.astream("How is it?")]
            assert "".join(str(piece.content) for piece in pieces) == message.content
            called = await chat.bind_tools([look]).ainvoke("How is it?")
            assert [(call["name"], call["args"]) for call in called.tool_calls] == [
                ("look", {"at": "Ulm"})
            ]


class TestLlamaIndex:
    async def test_chats_and_completions(
        self, start_door: StartDoor, served_model: ServedModel
    ) -> None:
        module = pytest.importorskip(
            "llama_index.llms.openai_like", reason="needs octavo[http-clients]"
        )
        llms = pytest.importorskip("llama_index.core.llms")
        async with (
            start_door(says(served_model, TEXT)) as door,
            httpx.AsyncClient() as connections,
        ):
            settings: Any = {"model": "tiny", "api_base": f"{door.url}/v1", "api_key": "none"}
            settings["async_http_client"] = connections
            chat = module.OpenAILike(**settings, is_chat_model=True, context_window=1024)
            message = llms.ChatMessage(role="user", content="How is it?")
            assert (await chat.achat([message])).message.content == TEXT
            stream: AsyncIterator[Any] = await chat.astream_chat([message])
            assert "".join([piece.delta async for piece in stream]) == TEXT
            plain = module.OpenAILike(**settings, is_chat_model=False, max_tokens=50)
            assert (await plain.acomplete("How is it?")).text == TEXT
            stream = await plain.astream_complete("How is it?")
            assert "".join([piece.delta async for piece in stream]) == TEXT


@pytest.fixture(scope="module")
def tool_model(served_model: ServedModel, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    folder = scripted(tmp_path_factory.mktemp("tools") / "tiny", {}, max_position_embeddings=1024)
    (folder / "chat_template.jinja").write_text(HERMES_CHAT, encoding="utf-8")
    return replace(ServedModel.load(str(folder), "tiny"), fingerprint=served_model.fingerprint)
