"""Checkpoints and services that many tests share: an `octavo up` costs seconds."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from checkpoints import tiny_llama
from end_to_end.prompts import check_alive_and_quiet, epochs_of
from service import Service, running_service

# A small pool: tests start many workers beside each other.
SMALL_POOL = {"OCTAVO_NUM_BLOCKS": "1024"}


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def one_pair(llama: Path) -> AsyncIterator[Service]:
    """`octavo up` with 1P1D over shared memory."""
    flags = ("--dtype", "float32", "--transport", "shared_memory")
    async with running_service(llama, *flags, env=SMALL_POOL) as service:
        yield service


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def two_pairs(llama: Path) -> AsyncIterator[Service]:
    """`octavo up` with 2P2D over gRPC bytes."""
    flags = ["--dtype", "float32", "--transport", "bytes"]
    flags += ["--prefill-workers", "2", "--decode-workers", "2"]
    async with running_service(llama, *flags, env=SMALL_POOL) as service:
        yield service


@pytest.fixture(params=["one_pair", "two_pairs"], ids=["1P1D", "2P2D"])
def either(request: pytest.FixtureRequest) -> Service:
    """Each of the two."""
    service: Service = request.getfixturevalue(request.param)
    return service


@pytest_asyncio.fixture(loop_scope="session")
async def service(either: Service, llama: Path) -> AsyncIterator[Service]:
    """1P1D, then 2P2D; after the test it must be alive, exact and quiet."""
    epochs = epochs_of(await either.all_workers())
    yield either
    await check_alive_and_quiet(either, llama, epochs)
