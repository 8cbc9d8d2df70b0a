"""`octavo top` of a real service: sums equal usage, rows equal what the workers say."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from end_to_end.fleet import Fleet, running_fleet
from end_to_end.prompts import GREEDY, crowd, prompt_of
from octavo.client import AsyncClient
from octavo.client.completion import Completion

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "a-key-of-more-than-16-bytes"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY)
    async with running_fleet(llama, num_decodes=2, api_key_file=keys) as fleet:
        yield fleet


async def top(address: str, *flags: str, key: str | None = KEY) -> tuple[int | None, str, str]:
    """The real command, which sees no terminal: exit status, output, errors."""
    environment = os.environ | {"COLUMNS": "140", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"OCTAVO_API_KEY": key} if key else {}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octavo.cli.app", "top", "--address", address, *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def told(address: str) -> dict[str, Any]:
    code, out, err = await top(address, "--json", "--interval", "0.1")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


async def load(fleet: Fleet) -> list[Completion]:
    """Shared prefixes, samples, one token, and a prompt that needs no prefill worker."""
    shared = prompt_of(96)
    async with AsyncClient(fleet.address, api_key=KEY) as client:
        fields: dict[str, Any] = {"max_tokens": 9, **GREEDY}
        first = await crowd(client, [shared, prompt_of(70, "other")], **fields)
        again = await crowd(client, [[*shared, 7, index] for index in range(3)], **fields)
        short = await crowd(client, [prompt_of(5)], max_tokens=4, **GREEDY)
        single = await crowd(client, [prompt_of(40, "one")], max_tokens=1, **GREEDY)
        sampled = await crowd(client, [prompt_of(50, "n")], n=3, max_tokens=6, ignore_eos=True)
    return first + again + short + single + sampled


async def test_sums_equal_usage(fleet: Fleet) -> None:
    before = (await told(fleet.address))["router"]["counters"]
    completions = await load(fleet)
    after = await told(fleet.address)
    counters = {name: value - before[name] for name, value in after["router"]["counters"].items()}
    assert counters["requests"] == counters["completed"] == len(completions)
    assert counters["failed"] == counters["cancelled"] == counters["refused"] == 0
    names = ("prompt_tokens", "completion_tokens", "cached_prompt_tokens")
    names += ("transferred_prompt_tokens", "cached_on_prefill_worker", "cached_on_decode_worker")
    for name in names:
        usage = sum(getattr(each.usage, name) for each in completions)
        assert counters[name] == usage, name
        assert usage, f"the load has no {name}"


async def test_rows_equal_what_the_workers_say(fleet: Fleet) -> None:
    await load(fleet)
    await fleet.wait_until_quiet()
    workers = (await told(fleet.address))["workers"]
    names = ["prefill-0", "decode-0", "decode-1"]
    assert [(each["worker_id"], each["state"]) for each in workers] == [(n, "ready") for n in names]
    for row, own in zip(workers, await fleet.all_workers(), strict=True):
        assert row["address"] == own.worker.address
        assert row["epoch"] == str(own.worker.epoch)
        assert (row["dtype"], row["block_size"]) == ("float32", 16)
        blocks = own.blocks
        assert row["blocks"] == {
            "total": 256, "free": blocks.free, "cached": blocks.cached, "held": 0
        }  # fmt: skip
        for name, value in row["counters"].items():
            assert value == getattr(own.counters, name), name
        assert 0 < row["counters"]["computing_steps"] <= own.counters.steps
        assert 0 < row["counters"]["step_seconds"] < 60
    moved = [each["counters"]["blocks_transferred"] for each in workers]
    assert moved[0] == moved[1] + moved[2] > 0


async def test_where_no_terminal_is_one_plain_picture_is_printed(fleet: Fleet) -> None:
    for flags in ([], ["--once"]):
        code, out, err = await top(fleet.address, *flags, "--interval", "0.1")
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        assert "3 workers" in out and "decode-1" in out and "float32" in out
        assert max(map(len, out.splitlines())) <= 140


async def test_a_wrong_address_or_key_ends_with_what_to_do(
    fleet: Fleet, unused_tcp_port: int
) -> None:
    nobody = f"127.0.0.1:{unused_tcp_port}"
    code, out, err = await top(nobody, "--once")
    assert (code, out) == (1, "")
    assert nobody in err and "octavo up" in err
    for key in (None, "another-key-of-16-bytes"):
        code, out, err = await top(fleet.address, "--json", key=key)
        assert (code, out) == (1, "") and "--api-key" in err
    code, out, err = await top(fleet.worker_addresses("decode")[0], "--once")
    assert (code, out) == (1, "") and "router" in err
    code, _, err = await top(fleet.address, "--interval", "0")
    assert code == 2 and "--interval" in err
