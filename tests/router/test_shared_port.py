"""Several routers on one port: each serves its connections, and one may leave."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from octavo.inference.v1 import inference_pb2_grpc
from octavo.inference.v1.inference_pb2 import GenerateRequest, SamplingParams, TokenIds
from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.router.server import Router, running_router
from octavo.rpc.listening import CannotListen
from octavo.rpc.server import Server
from scripted_workers import Handover, ScriptedDecodeWorker, ScriptedPrefillWorker

TOKENS = list(range(40, 60))
REQUEST = GenerateRequest(
    token_ids=TokenIds(ids=range(3, 103)), sampling=SamplingParams(max_tokens=len(TOKENS))
)


async def generate(address: str) -> list[int]:
    """Over a connection of its own."""
    async with grpc.aio.insecure_channel(
        address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        whole = await stub.Generate(REQUEST, timeout=10)
        return list(whole.candidates[0].token_ids)


async def until_ready(router: Router) -> None:
    async with asyncio.timeout(10):
        while not router.workers.is_ready:
            await router.workers.changed.wait()


async def test_routers_share_a_port_and_one_may_leave(served_model: ServedModel) -> None:
    layout = {"layout": {"model_fingerprint": served_model.fingerprint}}
    handover = Handover()
    async with AsyncExitStack() as stack:
        prefill = ScriptedPrefillWorker("p", TOKENS, handover, **layout)
        decode = ScriptedDecodeWorker("d", TOKENS, handover, **layout)
        for worker in (prefill, decode):
            await stack.enter_async_context(worker)

        def config(address: str) -> RouterConfig:
            return RouterConfig(
                model="tiny",
                listen_address=address,
                shares_port=True,
                prefill_address=(prefill.address,),
                decode_address=(decode.address,),
            )

        staying = await stack.enter_async_context(
            running_router(config("127.0.0.1:0"), served_model)
        )
        address = staying.address
        async with running_router(config(address), served_model) as leaving:
            await until_ready(staying)
            await until_ready(leaving)
            outputs = await asyncio.gather(*(generate(address) for _ in range(24)))
            assert outputs == 24 * [TOKENS]
            # Each router has a secret of its own, so that the key says whose request it was.
            assert len({spec.group_key for spec in prefill.specs}) == 2
        assert await generate(address) == TOKENS
        with pytest.raises(CannotListen):  # who does not say so does not share
            await Server(()).start(address)


async def test_a_router_is_reached_alone_at_its_private_address(
    served_model: ServedModel, tmp_path: Any
) -> None:
    private = f"unix:{tmp_path}/router.sock"
    config = RouterConfig(model="tiny", listen_address="127.0.0.1:0", private_address=private)
    async with running_router(config, served_model):
        with pytest.raises(grpc.aio.AioRpcError, match="no decode worker"):
            await generate(private)
