"""An engine on its thread, over a runner that counts."""

import asyncio
import threading
from collections.abc import Callable

import pytest
import torch

from checkpoints import scripted
from engine.counting import CountingRunner, make_scheduler
from octavo.checkpoint.config import ModelConfig, load_config
from octavo.engine.engine import Engine
from octavo.engine.errors import InvalidLogits
from octavo.engine.kv_cache import KVCache, KVLayout
from octavo.engine.loop import EngineLoop
from octavo.engine.sequence import Sequence, SequenceOutput
from octavo.engine.step_plan import StepPlan

TIMEOUT_S = 10


@pytest.fixture(scope="session")
def model_config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_config(scripted(tmp_path_factory.mktemp("scripted") / "model", {3: 4}))


@pytest.fixture
def make_loop(model_config: ModelConfig) -> Callable[..., EngineLoop]:
    def make(
        runner: CountingRunner | None = None, num_blocks: int = 16, **on: object
    ) -> EngineLoop:
        layout = KVLayout("float32", 1, 1, 8, 4, "")
        cache = KVCache(layout, num_blocks, torch.device("cpu"))
        scheduler = make_scheduler(num_blocks, max_num_batched_tokens=8)
        engine = Engine(scheduler, runner or CountingRunner(), cache, model_config)
        return EngineLoop(engine, **on)  # type: ignore[arg-type]

    return make


async def collect(loop: EngineLoop, seq: Sequence) -> list[SequenceOutput]:
    async with asyncio.timeout(TIMEOUT_S), loop.lease(seq) as stream:
        return [output async for output in stream]


async def num_held(loop: EngineLoop) -> int:
    return await loop.call(lambda: loop._engine.scheduler.pool.num_held)


class HeldRunner(CountingRunner):
    """Blocks in its first step until `let_go`, as a kernel that hangs would."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = threading.Event()
        self.let_go = threading.Event()

    def execute(self, plan: StepPlan) -> list[int | InvalidLogits]:
        self.is_held.set()
        assert self.let_go.wait(TIMEOUT_S)
        return super().execute(plan)
