"""`octavo up` as Prometheus meets it: a target a process, found by the file that it writes."""

import asyncio
import json

import pytest

from end_to_end.prompts import GREEDY, prompt_of
from metrics.figures import Scrape, documented
from octavo.cli.metrics_addresses import TARGETS
from octavo.client import AsyncClient
from service import Service

in_session = pytest.mark.asyncio(loop_scope="session")


@in_session
async def test_every_process_tells_what_it_did(one_pair: Service) -> None:
    async with asyncio.timeout(10):
        while not (one_pair.run_dir / TARGETS).exists():
            await asyncio.sleep(0.02)
    targets = json.loads((one_pair.run_dir / TARGETS).read_text())
    urls = {each["labels"]["process"]: f"http://{each['targets'][0]}/metrics" for each in targets}
    assert urls.keys() == {"prefill-0", "decode-0", "router"}
    before = {name: await Scrape.at(url) for name, url in urls.items()}
    for name, told in before.items():
        role = name.partition("-")[0]
        wanted = {figure for figure, (_, _, roles) in documented().items() if role in roles}
        assert {n for n in told.families if n.startswith(("octavo", "vllm"))} == wanted, name
    async with AsyncClient(one_pair.address) as client:
        usage = (await client.generate(prompt_of(100, seed="up"), max_tokens=5, **GREEDY)).usage
    await one_pair.wait_until_quiet()
    after = {name: await Scrape.at(url) for name, url in urls.items()}

    def grown(process: str, name: str, **labels: str) -> float:
        return after[process].value(name, **labels) - before[process].value(name, **labels)

    assert grown("router", "vllm:prompt_tokens_total") == usage.prompt_tokens == 100
    assert grown("router", "vllm:generation_tokens_total") == usage.completion_tokens == 5
    assert grown("router", "octavo_requests_total", status="OK", protocol="grpc") == 1
    assert grown("router", "octavo_redis_lookups_total") == 1
    assert grown("router", "octavo_redis_call_time_seconds_count") == 1
    assert after["router"].value("octavo_redis_breaker_open") == 0
    assert after["router"].value("octavo_workers", state="ready", role="decode") == 1
    assert grown("prefill-0", "octavo_engine_prompt_tokens_total", source="computed") == 100
    assert grown("decode-0", "vllm:inter_token_latency_seconds_count") == 4
    assert grown("decode-0", "octavo_kv_transfers_total", outcome="ok") == 1
    for name in ("prefill-0", "decode-0"):
        assert after[name].value("octavo_redis_registered") == 1
        assert after[name].value("octavo_build_info", worker_id=name) == 1
        assert after[name].value("octavo_redis_call_time_seconds_count") > 0
    door = await Scrape.at(f"http://{one_pair.http_address}/metrics")
    assert door.sample_names == after["router"].sample_names
    assert door.value("vllm:prompt_tokens_total") == after["router"].value(
        "vllm:prompt_tokens_total"
    )
