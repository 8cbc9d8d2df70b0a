"""A router over scripted workers, each test its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from checkpoints import scripted
from octavo.inference.v1 import inference_pb2, inference_pb2_grpc
from octavo.router.config import RouterConfig
from octavo.router.model import ServedModel
from octavo.router.server import Router, running_router
from scripted_workers import Handover, ScriptedDecodeWorker, ScriptedPrefillWorker

MODEL_NAME = "tiny"


@dataclass
class Fleet:
    """A router, its workers and a client's stub."""

    router: Router
    prefills: list[ScriptedPrefillWorker]
    decodes: list[ScriptedDecodeWorker]
    stub: Any
    model: ServedModel
    handover: Handover
    address: str = field(default="")

    @property
    def prefill(self) -> ScriptedPrefillWorker:
        return self.prefills[0]

    @property
    def decode(self) -> ScriptedDecodeWorker:
        return self.decodes[0]

    def ids(self, text: str) -> list[int]:
        return self.model.tokenizer.encode(text, add_special_tokens=False)

    async def stream(
        self, request: inference_pb2.GenerateRequest, timeout: float | None = 10
    ) -> list[inference_pb2.StreamGenerateResponse]:
        call = self.stub.StreamGenerate(
            inference_pb2.StreamGenerateRequest(request=request), timeout=timeout
        )
        return [message async for message in call]

    async def quiet(self) -> None:
        """Every leg has ended, and the router holds nothing, within a second."""
        async with asyncio.timeout(1):
            for worker in [*self.prefills, *self.decodes]:
                await worker.wait_open(0)
            while self.router.admission.num_queued_tokens or self.router.generator.num_running:
                await asyncio.sleep(0.01)


StartFleet = Callable[..., AbstractAsyncContextManager[Fleet]]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted(tmp_path_factory.mktemp("model") / MODEL_NAME, {}, max_position_embeddings=1024)


@pytest.fixture(scope="session")
def served_model(model_folder: Path) -> ServedModel:
    model = ServedModel.load(str(model_folder), MODEL_NAME)
    assert model.fingerprint
    return model


@pytest.fixture
def start_fleet(served_model: ServedModel) -> StartFleet:
    @asynccontextmanager
    async def start(
        token_ids: list[int],
        *,
        prefills: int = 1,
        decodes: int = 1,
        wait_ready: bool = True,
        many_calls: bool = True,
        model: ServedModel = served_model,
        **settings: Any,
    ) -> AsyncIterator[Fleet]:
        handover = Handover()
        layout = {"layout": {"model_fingerprint": served_model.fingerprint}}
        ps = [
            ScriptedPrefillWorker(f"p{i}", token_ids, handover, **layout) for i in range(prefills)
        ]
        ds = [ScriptedDecodeWorker(f"d{i}", token_ids, handover, **layout) for i in range(decodes)]
        for worker in [*ps, *ds]:
            worker.facts.serves_prefill_many = worker.facts.serves_decode_many = many_calls
            await worker.__aenter__()
        config = RouterConfig(
            model=MODEL_NAME,
            listen_address="127.0.0.1:0",
            prefill_address=tuple(worker.address for worker in ps),
            decode_address=tuple(worker.address for worker in ds),
            **settings,
        )
        try:
            async with running_router(config, model) as router:
                address = router.address
                async with grpc.aio.insecure_channel(address) as channel:
                    stub = inference_pb2_grpc.InferenceServiceStub(channel)
                    fleet = Fleet(router, ps, ds, stub, model, handover, address)
                    if wait_ready:
                        await wait_connected(fleet, prefills, decodes)
                    yield fleet
        finally:
            for worker in [*ps, *ds]:
                await worker.die()

    return start


async def wait_connected(fleet: Fleet, prefills: int, decodes: int) -> None:
    workers = fleet.router.workers
    async with asyncio.timeout(10):
        while len(workers.prefills) != prefills or len(workers.decodes) != decodes:
            await workers.changed.wait()  # nothing changes between the look and the wait
