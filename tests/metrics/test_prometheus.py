"""A real Prometheus over a real `octavo up` under load: every query of dashboard and rules answers.

Run by `make metrics`, which wants `prometheus` on the path.
"""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from end_to_end.prompts import prompt_of
from metrics.figures import RULES, dashboard_queries, names_in, rules
from octavo.cli.metrics_addresses import TARGETS
from octavo.client import AsyncClient
from service import Service, free_address, running_service

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]

LOAD_S = 25.0
# What a service that is well, and small, has nothing to say to.
MAY_BE_EMPTY = {"octavo:requests_refused:ratio5m", "octavo:requests_failed:ratio5m"}


@asynccontextmanager
async def running_prometheus(service: Service, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Scrapes the service's targets every second, with our rules; yields a client of its API."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES.resolve())],
        "scrape_configs": [
            {
                "job_name": "octavo",
                "file_sd_configs": [{"files": [str(service.run_dir / TARGETS)]}],
            }
        ],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))  # JSON is YAML
    address = free_address()
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={folder / 'prometheus.json'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as client:
            async with asyncio.timeout(30):
                while not await _is_ready(client):
                    assert process.returncode is None, (folder / "prometheus.log").read_text()
                    await asyncio.sleep(0.1)
            yield client
    finally:
        process.terminate()
        await process.wait()


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False


async def ask(client: httpx.AsyncClient, path: str, **params: str) -> Any:
    reply = await client.get(f"/api/v1/{path}", params=params)
    body = reply.json()
    assert body["status"] == "success", body
    return body["data"]


async def load(address: str) -> None:
    """For a while: shared and fresh prompts, quotes to guess from, grammars, callers that leave."""
    ends_at = time.monotonic() + LOAD_S
    quote = [5, 6, 7, 8, 9, 10, 11, 12] * 6
    asked: list[dict[str, Any]] = [
        {"max_tokens": 24, "ignore_eos": True},
        {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True},
        {"max_tokens": 12, "regex": "[ab]{4,12}"},
        {"max_tokens": 8, "n": 2, "seed": 1},
    ]
    async with AsyncClient(address, timeout_s=60) as client:
        number = 0
        while time.monotonic() < ends_at:
            number += 1
            prompts = [prompt_of(90, seed="shared"), quote, prompt_of(70, seed=number), quote]
            work = [client.generate(p, **a) for p, a in zip(prompts, asked, strict=True)]
            await asyncio.gather(*work)
            async with client.stream(prompt_of(50, seed=number), max_tokens=300) as stream:
                await anext(stream)


async def test_every_query_of_dashboard_and_rules_answers(llama: Path, tmp_path: Path) -> None:
    flags = ("--dtype", "float32")
    async with (
        running_service(llama, *flags, env={"OCTAVO_NUM_BLOCKS": "512"}) as service,
        running_prometheus(service, tmp_path) as client,
    ):
        await load(service.address)
        targets = (await ask(client, "targets"))["activeTargets"]
        assert [target["lastError"] for target in targets] == [""] * 3
        names = set(await ask(client, "label/__name__/values"))
        await _check_rules(client, names)
        for expr in dashboard_queries():
            assert names_in(expr) <= names, expr
            found = (await ask(client, "query", query=expr))["result"]
            assert found, f"nothing for {expr}"
            values = [float(series["value"][1]) for series in found]
            assert any(value == value for value in values), f"only NaN for {expr}"


async def _check_rules(client: httpx.AsyncClient, names: set[str]) -> None:
    """Evaluated without an error, over figures that are there; no alert while all is well."""
    found = {
        rule["name"]: rule
        for group in (await ask(client, "rules"))["groups"]
        for rule in group["rules"]
    }
    assert found.keys() == {rule.get("record") or rule["alert"] for rule in rules()}
    for rule in rules():
        name = rule.get("record") or rule["alert"]
        state = found[name]
        assert (state["health"], state.get("lastError", "")) == ("ok", ""), state
        assert names_in(rule["expr"]) <= names | MAY_BE_EMPTY, name
        answer = (await ask(client, "query", query=rule["expr"]))["result"]
        if "alert" in rule:
            assert (state["state"], answer) == ("inactive", []), name
        elif name not in MAY_BE_EMPTY:
            assert answer, name
