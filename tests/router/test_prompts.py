"""What a router makes of a good request: its prompt, its limits, its id."""

import subprocess
import sys
from typing import Any

import grpc
import pytest

from octavo.inference.v1 import inference_pb2
from octavo.inference.v1.inference_pb2 import (
    ChatMessage,
    ChatMessages,
    GenerateRequest,
)
from octavo.router.model import ServedModel
from router.test_requests import CONTEXT, VOCAB, StartFleet, ids
from scripted_workers import EOS


async def test_unset_max_tokens_is_256_or_what_is_left(start_fleet: StartFleet) -> None:
    async with start_fleet([70, EOS]) as fleet:
        for length, expected in ((10, 256), (CONTEXT - 100, 100), (CONTEXT - 1, 1)):
            await fleet.stub.Generate(GenerateRequest(token_ids=ids(*[5] * length)), timeout=5)
            specs = fleet.prefill.specs or fleet.decode.specs
            assert specs[-1].sampling.max_tokens == expected


async def test_limit_follows_the_connected_workers(start_fleet: StartFleet) -> None:
    async with start_fleet([70, EOS]) as fleet:
        decode = fleet.router.workers.decodes[0]
        object.__setattr__(decode.facts, "max_context_tokens", 64)
        model = await fleet.stub.GetModel(inference_pb2.GetModelRequest())
        assert model.max_context_tokens == 64
        with pytest.raises(grpc.aio.AioRpcError, match="context of 64"):
            await fleet.stub.Generate(GenerateRequest(token_ids=ids(*[5] * 64)), timeout=5)


async def test_caller_s_id_is_echoed_and_never_used_inside(start_fleet: StartFleet) -> None:
    async with start_fleet([70, EOS]) as fleet:
        same = GenerateRequest(token_ids=ids(5), request_id="mine")
        for _ in range(2):
            assert (await fleet.stub.Generate(same, timeout=5)).request_id == "mine"
        keys = {spec.key.request_id for spec in fleet.decode.specs}
        assert len(keys) == 2 and "mine" not in keys
        assert (await fleet.stub.Generate(GenerateRequest(token_ids=ids(5)))).request_id


async def test_chat_is_the_template_and_nothing_more(
    start_fleet: StartFleet, served_model: ServedModel
) -> None:
    chat = ChatMessages(
        messages=[
            ChatMessage(role="system", content="Be brief."),
            ChatMessage(role="user", content="Say <|im_end|> and </s>."),
        ]
    )
    expected = served_model.tokenizer.encode_chat(
        [{"role": m.role, "content": m.content} for m in chat.messages]
    )
    async with start_fleet([70, EOS]) as fleet:
        await fleet.stub.Generate(GenerateRequest(chat=chat), timeout=5)
        specs = fleet.prefill.specs + fleet.decode.specs
        assert list(specs[-1].prompt_token_ids) == expected
        assert expected.count(EOS) == 2  # the template's two; the user's is text
        tokenized = await fleet.stub.Tokenize(inference_pb2.TokenizeRequest(chat=chat))
        assert list(tokenized.token_ids) == expected


async def test_tokenize_is_what_a_generation_does(start_fleet: StartFleet) -> None:
    async with start_fleet([70, EOS]) as fleet:
        for flag in (None, True, False):
            text = "The capital of the country"
            await fleet.stub.Generate(GenerateRequest(text=text, add_special_tokens=flag))
            tokenized = await fleet.stub.Tokenize(
                inference_pb2.TokenizeRequest(text=text, add_special_tokens=flag)
            )
            specs = fleet.prefill.specs + fleet.decode.specs
            assert list(tokenized.token_ids) == list(specs[-1].prompt_token_ids)
        with pytest.raises(grpc.aio.AioRpcError, match="text has"):
            await fleet.stub.Tokenize(inference_pb2.TokenizeRequest(text="x" * 9000))
        with pytest.raises(grpc.aio.AioRpcError, match="an input is required"):
            await fleet.stub.Tokenize(inference_pb2.TokenizeRequest())


async def test_model_says_what_it_is(start_fleet: StartFleet) -> None:
    async with start_fleet([70, EOS]) as fleet:
        model = await fleet.stub.GetModel(inference_pb2.GetModelRequest())
        assert (model.model, model.vocab_size, model.block_size) == ("tiny", VOCAB, 16)
        assert model.max_context_tokens == CONTEXT and list(model.eos_token_ids) == [EOS]
        assert model.default_sampling.temperature == 1.0
        models = await fleet.stub.ListModels(inference_pb2.ListModelsRequest())
        assert list(models.models) == ["tiny"]
        with pytest.raises(grpc.aio.AioRpcError, match="served: 'tiny'"):
            await fleet.stub.GetModel(inference_pb2.GetModelRequest(model="other"))


def test_router_runs_without_torch(model_folder: Any) -> None:
    script = (
        "import sys; import octavo.router.server; from octavo.router.model import ServedModel;"
        f"m = ServedModel.load({str(model_folder)!r}, 'm');"
        "assert m.tokenizer.encode_chat([{'role': 'user', 'content': 'hi'}]);"
        "assert m.fingerprint;"
        "print([n for n in ('torch', 'triton', 'numba') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
