"""Requests with LoRA adapters through whole services: the tokens of `peft`, by every way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from checkpoints.adapters import adapted_run, tiny_adapter
from end_to_end.fleet import Fleet, running_fleet
from end_to_end.prompts import BLOCK, GREEDY, check_alive_and_quiet, prompt_of, streamed
from exact.matrix import Matrix
from octavo.client import AsyncClient, Client, Completion, OctavoError
from octavo.decode_worker.config import DecodeConfig
from octavo.decode_worker.server import running_decode_worker
from octavo.engine.build import build_engine

pytestmark = pytest.mark.asyncio(loop_scope="session")

LENGTHS = (1, 16, 17, 65, 129)
NUM_TOKENS = 48
FIELDS: dict[str, Any] = GREEDY | {"max_tokens": NUM_TOKENS}
TARGETS: dict[str, dict[str, Any]] = {
    "sql": {},
    "chat": {"r": 3, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "a|b": {"r": 6, "use_rslora": True, "target_modules": ["k_proj", "o_proj", "down_proj"]},
}


@pytest.fixture(scope="session")
def root(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three adapters in a folder; "other" has the shape of "sql" and other weights."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, (name, settings) in enumerate(TARGETS.items()):
        tiny_adapter(llama, folder / name, seed, **settings)
    tiny_adapter(llama, folder / "other", 9)
    return folder


@pytest.fixture(scope="session")
def matrices(llama: Path, root: Path) -> dict[str, Matrix]:
    """By adapter, "" for none."""
    prompts = {length: prompt_of(length, seed="adapters") for length in LENGTHS}
    return {
        name: Matrix(
            prompts,
            {
                length: adapted_run(llama, root / name if name else None, prompt, NUM_TOKENS)
                for length, prompt in prompts.items()
            },
        )
        for name in ("", *TARGETS, "other")
    }


def lora(root: Path, *names: str) -> dict[str, Any]:
    """Settings of a worker."""
    return {"lora": tuple(f"{name}={root / name}" for name in names), "lora_root": root}


@asynccontextmanager
async def running(
    llama: Path, root: Path, *names: str, num_pairs: int = 1, **settings: Any
) -> AsyncIterator[tuple[Fleet, AsyncClient]]:
    """A fleet that may load adapters and has those named, and a client of it."""
    roles = {role: lora(root, *names) | settings.pop(role, {}) for role in ("prefill", "decode")}
    async with (
        running_fleet(
            llama, num_pairs, num_pairs, lora_root=str(root), **roles, **settings
        ) as fleet,
        AsyncClient(fleet.address, timeout_s=60) as client,
    ):
        yield fleet, client


async def ask_all(
    client: AsyncClient, matrices: dict[str, Matrix], names: Sequence[str], salt: str
) -> list[Completion]:
    """Every prompt with every adapter, all at once; they must be exact."""
    asked = [(name, length) for length in LENGTHS for name in names]
    answers = await asyncio.gather(
        *(
            client.generate(
                matrices[name].prompts[length], lora_adapter=name, cache_salt=salt, **FIELDS
            )
            for name, length in asked
        )
    )
    for (name, length), answer in zip(asked, answers, strict=True):
        matrices[name].check(length, answer.token_ids, f"adapter {name!r}")
    return answers


@pytest.mark.parametrize(
    ("way", "num_pairs"),
    [("shared_memory", 1), ("bytes", 1), ("bytes", 2), ("local", 1), ("preempted", 1)],
)
async def test_mixed_batches_are_exact(
    llama: Path, root: Path, matrices: dict[str, Matrix], way: str, num_pairs: int
) -> None:
    settings = {"transport": way if way in ("shared_memory", "bytes") else "auto"}
    decode = settings | {"local_prefill_max_tokens": 256 if way == "local" else 0}
    if way == "preempted":
        decode["num_blocks"] = 16
    names = ("", *TARGETS)
    async with running(
        llama, root, *TARGETS, num_pairs=num_pairs, prefill=settings, decode=decode
    ) as (fleet, client):
        cold = await ask_all(client, matrices, names, "crowd")
        assert sum(answer.usage.cached_prompt_tokens for answer in cold) == 0
        warm = await ask_all(client, matrices, names, "crowd")
        if num_pairs == 1 and way != "preempted":
            for answer in warm:
                most = (answer.usage.prompt_tokens - 1) // BLOCK * BLOCK
                assert answer.usage.cached_prompt_tokens == most
        for name in names:
            joined = await streamed(client, matrices[name].prompts[65], lora_adapter=name, **FIELDS)
            matrices[name].check(65, joined.token_ids, f"adapter {name!r}, streamed")
        decodes = await fleet.workers("decode")
        assert (sum(w.counters.preemptions for w in decodes) > 0) == (way == "preempted")
        if way in ("shared_memory", "bytes"):
            assert all(worker.counters.prompt_tokens_computed == 0 for worker in decodes)
        await check_alive_and_quiet(fleet, llama)


async def test_a_hit_needs_the_same_salt_and_the_same_adapter(llama: Path, root: Path) -> None:
    """C06: one prompt under every salt and adapter, names that look like each other's."""
    prompt, names, salts = prompt_of(40, seed="C06"), ("", "sql", "a|b"), ("", "sql", "a|b", "a")
    pairs = [(name, salt) for name in names for salt in salts]
    async with running(llama, root, "sql", "a|b") as (_, client):
        for cached in (0, 32):
            for name, salt in pairs:
                reply = await client.generate(
                    prompt, lora_adapter=name, cache_salt=salt, max_tokens=1, **GREEDY
                )
                assert reply.usage.cached_prompt_tokens == cached, (name, salt)


async def test_adapters_come_and_go_while_requests_run(
    llama: Path, root: Path, matrices: dict[str, Matrix]
) -> None:
    async with running(llama, root, "chat", num_pairs=2) as (fleet, client):
        assert [a.name for a in await client.list_adapters()] == ["chat"]
        with pytest.raises(OctavoError, match="adapter 'sql' is not loaded; loaded: 'chat'") as no:
            await client.generate([5], lora_adapter="sql")
        assert (no.value.code, no.value.field) == (grpc.StatusCode.NOT_FOUND, "lora_adapter")
        first = await client.load_adapter("sql", "sql")
        assert (first.rank, first.prefill_workers, first.decode_workers) == (4, 2, 2)
        assert await client.load_adapter("sql", str(root / "sql")) == first  # no error, no change
        with pytest.raises(OctavoError, match="loaded with other weights") as taken:
            await client.load_adapter("sql", "other")
        assert taken.value.code is grpc.StatusCode.ALREADY_EXISTS
        assert await client.get_adapter("sql") == first
        assert (await client.get_model()).lora_adapters == ["chat", "sql"]
        await ask_all(client, matrices, ("sql", ""), "sql")

        prompt = prompt_of(30, seed="in use")
        stream = client.stream(prompt, lora_adapter="sql", max_tokens=400, **GREEDY)
        await anext(stream)
        await client.unload_adapter("sql")
        with pytest.raises(OctavoError, match="'sql' is not loaded"):
            await client.generate([5], lora_adapter="sql")
        again = await client.load_adapter("sql", "other")
        assert again.fingerprint != first.fingerprint
        reply = await client.generate(
            matrices["other"].prompts[65], lora_adapter="sql", cache_salt="sql", **FIELDS
        )
        matrices["other"].check(65, reply.token_ids, "the same name, other weights")
        assert reply.usage.cached_prompt_tokens == 0
        async for _ in stream:
            pass
        wanted = adapted_run(llama, root / "sql", prompt, 60)
        Matrix({30: prompt}, {30: wanted}).check(30, stream.completion.token_ids[:60], "in use")
        with pytest.raises(OctavoError, match="'none' is not loaded"):
            await client.unload_adapter("none")
        await check_alive_and_quiet(fleet, llama)


def use_blocking_client(address: str) -> list[int]:
    """Load, ask, look and unload; returns the answer's tokens."""
    with Client(address, timeout_s=60) as client:
        loaded = client.load_adapter("mine", "sql")
        assert [loaded] == client.list_adapters() == [client.get_adapter("mine")]
        answer = client.generate(prompt_of(17, seed="adapters"), lora_adapter="mine", **FIELDS)
        client.unload_adapter("mine")
        assert client.list_adapters() == []
        return answer.token_ids


async def test_the_blocking_client_does_the_same(
    llama: Path, root: Path, matrices: dict[str, Matrix]
) -> None:
    async with running(llama, root) as (fleet, _):
        token_ids = await asyncio.to_thread(use_blocking_client, fleet.address)
        matrices["sql"].check(17, token_ids, "by the blocking client")


async def test_a_load_that_one_worker_refuses_is_undone_on_all(llama: Path, root: Path) -> None:
    async with running(llama, root, num_pairs=2, decode={"max_lora_rank": 4}) as (fleet, client):
        with pytest.raises(OctavoError, match=r"decode-\d .*rank 6 .*raise --max-lora-rank") as no:
            await client.load_adapter("a|b", "a|b")
        assert no.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert await client.list_adapters() == []
        assert all(not list(worker.engine.adapters) for worker in fleet.prefills)
        await client.load_adapter("sql", "sql")
        full = await client.load_adapter("sql", "sql")
        assert full.decode_workers == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../elsewhere", "must lie below"),
        ("/etc", "must lie below"),
        ("sql/../..", "must lie below"),
        (".", "must lie below"),
        ("", "must lie below"),
        ("link", "must lie below this worker's"),
        ("sql\0", "printable"),
        ("missing", "adapter_config.json does not exist"),
    ],
)
async def test_only_folders_below_the_root_are_read(
    llama: Path, root: Path, tmp_path: Path, path: str, message: str
) -> None:
    below = tmp_path / "root"
    below.mkdir()
    (below / "link").symlink_to(root / "sql")
    async with running(llama, below) as (_, client):
        with pytest.raises(OctavoError, match=message) as refused:
            await client.load_adapter("x", path)
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.field == "path"
        assert await client.list_adapters() == []


async def test_without_a_root_nothing_is_loaded(llama: Path, root: Path) -> None:
    async with running_fleet(llama) as fleet, AsyncClient(fleet.address) as client:
        for work in (client.load_adapter("x", "sql"), client.unload_adapter("x")):
            with pytest.raises(OctavoError, match="--lora-root") as refused:
                await work
            assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
    async with (
        running_fleet(llama, lora_root=str(root)) as fleet,
        AsyncClient(fleet.address) as client,
    ):
        with pytest.raises(OctavoError, match=r"prefill-0 .* start it with --lora-root") as refused:
            await client.load_adapter("x", "sql")
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_worker_that_lacks_an_adapter_gets_no_request_for_it(
    llama: Path, root: Path, matrices: dict[str, Matrix]
) -> None:
    async with running(llama, root, "sql") as (fleet, client):
        config = DecodeConfig(
            model=str(llama), device="cpu", dtype="float32", num_blocks=256, worker_id="late"
        )
        engine = build_engine(config.engine_config())
        async with running_decode_worker(config, engine) as late:
            workers = fleet.router.workers
            workers.want("late", frozenset({late.facts.worker.address}))
            async with asyncio.timeout(20):
                while len(workers.decodes) < 2:
                    await asyncio.sleep(0.01)
            await ask_all(client, matrices, ("sql",), "late")
            assert late.loop.load.steps == 0
            assert (await client.get_adapter("sql")).decode_workers == 1
            fleet.decodes[0].streams.close()  # it drains
            async with asyncio.timeout(20):
                while len(workers.decodes) > 1:
                    await asyncio.sleep(0.01)
            with pytest.raises(OctavoError) as nobody:
                await client.generate(prompt_of(65), lora_adapter="sql", **FIELDS)
            assert nobody.value.code is grpc.StatusCode.UNAVAILABLE
            plain = await client.generate(matrices[""].prompts[65], **FIELDS)
            matrices[""].check(65, plain.token_ids, "without an adapter")


async def test_workers_that_mean_different_weights_are_told_apart(
    llama: Path, root: Path, matrices: dict[str, Matrix]
) -> None:
    other = {"lora": (f"sql={root / 'other'}",)}
    async with running(llama, root, "sql", decode=other) as (_, client):
        assert len(await client.list_adapters()) == 2
        with pytest.raises(OctavoError, match="different weights under the name 'sql'") as refused:
            await client.generate([5], lora_adapter="sql")
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
        await client.unload_adapter("sql")
        await client.load_adapter("sql", "other")
        await ask_all(client, matrices | {"sql": matrices["other"]}, ("sql",), "told apart")
