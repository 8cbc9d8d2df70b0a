"""Bad and extreme inputs through the router: refused by name, before any token: C24, C32."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from end_to_end.fleet import running_fleet
from end_to_end.prompts import GREEDY, check_alive_and_quiet, expected, prompt_of
from octavo.client import AsyncClient, OctavoError
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.inference.v1.inference_pb2 import (
    BeamSearch,
    ChatMessages,
    GenerateRequest,
    OutputOptions,
    SamplingParams,
    StreamGenerateRequest,
    TokenIds,
)
from service import Service

pytestmark = pytest.mark.asyncio(loop_scope="session")

INVALID = grpc.StatusCode.INVALID_ARGUMENT
LATER = grpc.StatusCode.UNIMPLEMENTED
VOCABULARY = 384
CONTEXT = 4096


def bad_requests() -> list[tuple[GenerateRequest, grpc.StatusCode, str]]:
    """A request, the status it must get, the field that must be named."""
    prompt = TokenIds(ids=[5, 6])
    cases = [
        (GenerateRequest(token_ids=TokenIds(ids=[5, bad])), INVALID, "token_ids")
        for bad in (VOCABULARY, VOCABULARY + 64, 2**31, 2**32 - 1)
    ]
    cases += [
        (GenerateRequest(), INVALID, "input"),
        (GenerateRequest(token_ids=TokenIds()), INVALID, "token_ids"),
        (GenerateRequest(text=""), INVALID, "text"),
        (GenerateRequest(chat=ChatMessages()), INVALID, "chat"),
        (GenerateRequest(token_ids=TokenIds(ids=[5] * CONTEXT)), INVALID, "token_ids"),
        (GenerateRequest(text="x" * (15 << 20)), INVALID, "text"),
        (GenerateRequest(token_ids=prompt, model="gpt"), grpc.StatusCode.NOT_FOUND, "model"),
        (GenerateRequest(token_ids=prompt, priority=3), LATER, "priority"),
        (GenerateRequest(token_ids=prompt, cache_salt="x" * 257), INVALID, "cache_salt"),
    ]
    fields: list[tuple[dict[str, Any], grpc.StatusCode]] = [
        ({"max_tokens": 0}, INVALID),
        ({"max_tokens": CONTEXT - 1}, INVALID),
        ({"max_tokens": 2**31}, INVALID),
        ({"stop_token_ids": [VOCABULARY]}, INVALID),
        ({"stop_token_ids": [2**32 - 1]}, INVALID),
        ({"stop_token_ids": [1] * 65}, INVALID),
        ({"stop": ["x"] * 17}, INVALID),
        ({"stop": [""]}, INVALID),
        ({"logit_bias": {VOCABULARY: 1.0}}, INVALID),
        ({"logit_bias": {2**32 - 1: 1.0}}, INVALID),
        ({"allowed_token_ids": [VOCABULARY]}, INVALID),
        ({"bad_words_ids": [TokenIds(ids=[5, VOCABULARY])]}, INVALID),
        ({"min_tokens": 5, "max_tokens": 4}, INVALID),
        ({"n": 0}, INVALID),
        ({"n": 129}, INVALID),
        ({"n": 2**32 - 1}, INVALID),
        ({"best_of": 2, "n": 3}, INVALID),
        ({"best_of": 129}, INVALID),
        ({"seed": 1, "beam_search": BeamSearch(width=2)}, INVALID),
        ({"n": 3, "beam_search": BeamSearch(width=2)}, INVALID),
    ]
    for width in (0, 17, 2**32 - 1):
        request = GenerateRequest(
            token_ids=prompt, sampling=SamplingParams(beam_search=BeamSearch(width=width))
        )
        cases.append((request, INVALID, "sampling.beam_search.width"))
    for values, code in fields:
        request = GenerateRequest(token_ids=prompt, sampling=SamplingParams(**values))
        cases.append((request, code, f"sampling.{next(iter(values))}"))
    for logprobs in (21, 129, 2**32 - 1):
        output = OutputOptions(logprobs=logprobs)
        cases.append((GenerateRequest(token_ids=prompt, output=output), INVALID, "output.logprobs"))
    return cases


async def test_bad_requests_name_their_field_and_leave_the_service_exact(
    service: Service, llama: Path
) -> None:
    """C24: unary and streamed, and the canary after every one."""
    options = [("grpc.max_send_message_length", -1)]
    computed = [w.counters.requests for w in await service.all_workers()]
    async with grpc.aio.insecure_channel(service.address, options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for request, code, field in bad_requests():
            for call in (
                stub.Generate(request, timeout=20),
                stub.StreamGenerate(StreamGenerateRequest(request=request), timeout=20).read(),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call
                error = OctavoError.of(failed.value)
                assert (error.code, error.field) == (code, field), str(request)[:200]
                assert field.rpartition(".")[2] in error.message
        assert computed == [w.counters.requests for w in await service.all_workers()]
        for request, _, _ in bad_requests()[::4]:
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Generate(request, timeout=20)
            await check_alive_and_quiet(service, llama)
        await check_oversized(stub)


async def check_oversized(stub: Any) -> None:
    """A message over the limit is refused by its size, which gRPC itself says."""
    with pytest.raises(grpc.aio.AioRpcError, match=f"{16 << 20}") as failed:
        await stub.Generate(GenerateRequest(text="x" * (17 << 20)), timeout=20)
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_last_id_of_the_vocabulary_works(service: Service, llama: Path) -> None:
    """C24: V-1 is a token."""
    async with AsyncClient(service.address) as client:
        prompt = [VOCABULARY - 1, 0, VOCABULARY - 1]
        reply = await client.generate(
            prompt, max_tokens=4, stop_token_ids=[VOCABULARY - 1], temperature=0.0, ignore_eos=True
        )
        wanted = expected(llama, prompt, 4)
        if VOCABULARY - 1 in wanted:
            wanted = wanted[: wanted.index(VOCABULARY - 1) + 1]
        assert reply.token_ids == wanted


@pytest.mark.parametrize(
    ("prefill_blocks", "decode_blocks"), [(8, 32), (32, 12), (16, 16)], ids=["P", "D", "both"]
)
async def test_inputs_at_the_limits_of_unequal_pools(
    llama: Path, prefill_blocks: int, decode_blocks: int
) -> None:
    """C32: what fits is exact, one more token is refused before any token, nothing stays held."""
    pools = {"num_blocks": prefill_blocks}, {"num_blocks": decode_blocks}
    # A prefill worker holds the prompt alone, and samples one token after it.
    most_for_prefill, most_for_decode = 16 * prefill_blocks - 1, 16 * decode_blocks
    async with (
        running_fleet(llama, prefill=pools[0], decode=pools[1]) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
    ):
        for max_tokens in (1, 2, 9):
            # With one token there is no decode leg, but the service's context is the decode pool's.
            most = min(most_for_prefill, most_for_decode - max_tokens)
            for length in (most - 1, most):
                prompt = prompt_of(length, seed="C32")
                reply = await client.generate(prompt, max_tokens=max_tokens, **GREEDY)
                assert reply.token_ids == expected(llama, prompt, max_tokens)
            for length in (most + 1, most + 2, most_for_decode + 1, CONTEXT - 9, CONTEXT + 1):
                stream = client.stream(prompt_of(length), max_tokens=max_tokens, **GREEDY)
                with pytest.raises(OctavoError) as refused:
                    await anext(stream)
                assert refused.value.code is INVALID, length
                assert refused.value.field in ("token_ids", "sampling.max_tokens")
                await fleet.wait_until_quiet(1.0)
        await check_alive_and_quiet(fleet, llama)


async def test_ids_beyond_the_wire_cannot_be_written() -> None:
    """C24: -1 and 2^63 cannot even be written."""
    for bad in (-1, 2**32, 2**63):
        with pytest.raises(ValueError):
            inference_pb2.TokenIds(ids=[bad])
