"""Workers that lend each other their cores: who is on which, same tokens, and the dead."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from checkpoints import tiny_llama
from end_to_end.processes import Processes, running_processes
from end_to_end.prompts import GREEDY, prompt_of
from octavo import LLM, SamplingParams
from octavo.cli.plan import CORE_BOARD
from octavo.client import AsyncClient
from octavo.engine.core_set import allowed_cores
from octavo.worker.core_board import CoreBoard

pytestmark = [
    pytest.mark.slow,  # many starts, and a machine that does nothing else
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(len(allowed_cores()) < 2, reason="one core cannot be lent"),
]

SHORT, LONG = prompt_of(20, seed="lent"), prompt_of(150, seed="lent")


@dataclass(frozen=True)
class LendingService:
    """One prefill and one decode worker, and the board between them."""

    processes: Processes
    board: CoreBoard

    def wanted(self, name: str) -> int:
        return int(self.board.wanted(self._core_of(name))[0])

    def borrowed(self, name: str) -> int:
        return int(self.board.borrowed(self._core_of(name))[0])

    def leave_borrowed(self, name: str) -> None:
        """As a borrower that died on this worker's core."""
        self.board.borrowed(self._core_of(name))[0] = 1

    def _core_of(self, name: str) -> int:
        return self.processes.children[name].cores[0]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not as tiny as others: a step lasts long enough for a helper to wake up and be seen."""
    path = tmp_path_factory.mktemp("llama") / "model"
    return tiny_llama(path, hidden_size=256, intermediate_size=2048, num_hidden_layers=8)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lending(
    llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LendingService]:
    """A prefill of thousands of steps; int8, whose products helpers share."""
    folder = tmp_path_factory.mktemp("run")
    env, tiny_steps = {"OCTAVO_NUM_BLOCKS": "512"}, {"OCTAVO_MAX_NUM_BATCHED_TOKENS": "2"}
    async with running_processes(
        llama, folder, env=env, prefill_env=tiny_steps, quantization="int8"
    ) as processes:
        yield LendingService(processes, CoreBoard(folder / CORE_BOARD))


@pytest.fixture(scope="module")
def alone(llama: Path) -> Callable[[list[int], int], list[int]]:
    """What one thread outputs."""
    llm = LLM(str(llama), num_threads=1, dtype="float32", device="cpu", quantization="int8")

    def generate(prompt: list[int], num_tokens: int) -> list[int]:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_tokens)
        return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids

    return generate


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def test_an_idle_core_is_lent_and_taken_back_when_work_arrives(
    lending: LendingService, alone: Callable[[list[int], int], list[int]]
) -> None:
    async with AsyncClient(lending.processes.address, timeout_s=100) as client:
        await until(lambda: lending.wanted("prefill-0") == 0)
        decoding = asyncio.create_task(client.generate(SHORT, max_tokens=1500, **GREEDY))
        await until(lambda: lending.borrowed("prefill-0") == 1)
        handed_over = asyncio.create_task(client.generate(LONG, max_tokens=20, **GREEDY))
        await until(lambda: (lending.wanted("prefill-0"), lending.borrowed("prefill-0")) == (1, 0))
        assert (await handed_over).token_ids == alone(LONG, 20)
        assert (await decoding).token_ids == alone(SHORT, 1500)
    await until(lambda: lending.wanted("decode-0") == 0)
    assert lending.borrowed("prefill-0") == 0


async def test_a_decode_worker_that_waits_for_blocks_lends_its_core(
    lending: LendingService, alone: Callable[[list[int], int], list[int]]
) -> None:
    async with AsyncClient(lending.processes.address, timeout_s=100) as client:
        prompt = prompt_of(400, seed="waits")
        reply = asyncio.create_task(client.generate(prompt, max_tokens=8, **GREEDY))
        await until(lambda: lending.borrowed("decode-0") == 1)
        assert (await reply).token_ids == alone(prompt, 8)


async def test_who_died_with_a_core_costs_its_owner_nothing_but_a_moment(
    lending: LendingService, alone: Callable[[list[int], int], list[int]]
) -> None:
    async with AsyncClient(lending.processes.address, timeout_s=100) as client:
        await lending.processes.kill("decode-0")
        lending.leave_borrowed("prefill-0")
        await lending.processes.start("decode-0")
        prompt = prompt_of(160, seed="borrower died")
        reply = await client.generate(prompt, max_tokens=8, **GREEDY)
        assert reply.token_ids == alone(prompt, 8)
        await until(lambda: lending.borrowed("prefill-0") == 0)


async def test_an_owner_that_died_idle_or_at_work_gets_its_core_back(
    lending: LendingService, alone: Callable[[list[int], int], list[int]]
) -> None:
    async with AsyncClient(lending.processes.address, timeout_s=100) as client:
        decoding = asyncio.create_task(client.generate(SHORT, max_tokens=1500, **GREEDY))
        await until(lambda: lending.borrowed("prefill-0") == 1)
        await lending.processes.kill("prefill-0")
        assert (await decoding).token_ids == alone(SHORT, 1500)
        await lending.processes.start("prefill-0")
        prompt = prompt_of(170, seed="owner died")
        reply = await client.generate(prompt, max_tokens=8, **GREEDY)
        assert reply.token_ids == alone(prompt, 8)
        await until(lambda: lending.wanted("prefill-0") == 0)
