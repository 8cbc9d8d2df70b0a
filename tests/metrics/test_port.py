"""The port that Prometheus reads: locked as every other, and held up by nobody."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from prometheus_client import CollectorRegistry, Gauge

from metrics.figures import Scrape
from octavo.decode_worker.config import DecodeConfig
from octavo.histogram import INTER_TOKEN_S, Histogram
from octavo.metrics.families import Families
from octavo.metrics.server import running_metrics
from octavo.prefill_worker.config import PrefillConfig
from octavo.router.config import RouterConfig
from octavo.rpc.tls import PEER_NAME, TlsFiles
from rpc.certificates import write_folder

LOOPBACK = "127.0.0.1:0"


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("octavo_answer", "It.", registry=registry).set(42)
    Gauge("vllm:question", "Times seven.", registry=registry).set(6)
    return registry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "inside", trustme.CA(), PEER_NAME, "127.0.0.1")


@pytest.fixture
def locked(registry: CollectorRegistry, folder: Path) -> Iterator[int]:
    with running_metrics(registry, LOOPBACK, TlsFiles.in_folder(folder)) as port:
        yield port


def client_context(folder: Path, *, shows: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    if shows:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


async def answer(url: str, **options: Any) -> float:
    return (await Scrape.at(url, **options)).value("octavo_answer")


async def test_names_keep_their_colon_whatever_is_accepted(registry: CollectorRegistry) -> None:
    with running_metrics(registry, LOOPBACK) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        assert await answer(url) == 42
        async with httpx.AsyncClient() as client:
            for accepted in ("application/openmetrics-text; version=1.0.0", "*/*", ""):
                reply = await client.get(url, headers={"accept": accepted})
                assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
                assert "\nvllm:question 6.0\n" in reply.text
            packed = await client.get(url, headers={"accept-encoding": "gzip"})
            assert packed.headers["content-encoding"] == "gzip" and "octavo_answer" in packed.text
            assert (await client.post(url)).status_code == 405
    with pytest.raises(httpx.ConnectError):
        await answer(url)


async def test_only_who_shows_a_certificate_of_ours_reads(locked: int, folder: Path) -> None:
    url = f"https://127.0.0.1:{locked}/metrics"
    assert await answer(url, verify=client_context(folder)) == 42
    for options in ({}, {"verify": client_context(folder, shows=False)}):
        # TLS 1.3 may refuse after the handshake: httpx lets the alert through as it reads.
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            await answer(url, **options)
    with pytest.raises(httpx.TransportError):
        await answer(url.replace("https", "http"))
    assert await answer(url, verify=client_context(folder)) == 42


async def test_a_renewed_certificate_counts_for_the_next_reader(locked: int, folder: Path) -> None:
    url = f"https://127.0.0.1:{locked}/metrics"
    assert await answer(url, verify=client_context(folder)) == 42
    old = client_context(folder)
    write_folder(folder, trustme.CA(), "127.0.0.1")
    assert await answer(url, verify=client_context(folder)) == 42
    with pytest.raises(httpx.TransportError):
        await answer(url, verify=old)


@pytest.mark.parametrize("is_locked", [True, False])
async def test_readers_that_say_nothing_hold_up_nobody(
    registry: CollectorRegistry, folder: Path, is_locked: bool
) -> None:
    tls = TlsFiles.in_folder(folder) if is_locked else None
    with running_metrics(registry, LOOPBACK, tls) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        scheme = "https" if is_locked else "http"
        url = f"{scheme}://127.0.0.1:{port}/metrics"
        async with asyncio.timeout(5):
            assert await answer(url, verify=client_context(folder)) == 42
        for each in silent:
            each.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_who_takes_a_free_port_tells_which_in_a_file(
    registry: CollectorRegistry, tmp_path: Path, host: str
) -> None:
    file = tmp_path / "router-0.metrics-address"
    with running_metrics(registry, f"{host}:0", address_file=file) as port:
        assert file.read_text() == f"{host}:{port}" != f"{host}:0"
        assert list(tmp_path.iterdir()) == [file]


def test_a_taken_address_is_named(registry: CollectorRegistry) -> None:
    with (
        running_metrics(registry, LOOPBACK) as port,
        pytest.raises(OSError, match=f"cannot serve metrics at 127.0.0.1:{port}"),
        running_metrics(registry, f"127.0.0.1:{port}"),
    ):
        pass


@pytest.mark.parametrize("config", [RouterConfig, PrefillConfig, DecodeConfig])
def test_beyond_loopback_it_is_locked_or_opened_on_purpose(config: Any, folder: Path) -> None:
    for address in ("0.0.0.0:9464", "[::]:9464", "10.0.0.3:9464"):
        with pytest.raises(ValueError, match=r"metrics_address .*--insecure"):
            config(model="m", metrics_address=address)
        config(model="m", metrics_address=address, insecure=True)
        config(model="m", metrics_address=address, internal_tls_dir=folder)
    for address in ("9464", "unix:/m", "localhost:http"):
        with pytest.raises(ValueError, match="metrics_address must be host:port or none"):
            config(model="m", metrics_address=address)
    assert not config(model="m").serves_metrics
    assert not config(model="m", metrics_address="none").serves_metrics


def test_a_router_s_metrics_take_the_lock_inside_before_that_of_clients(
    folder: Path, tmp_path: Path
) -> None:
    outside = write_folder(tmp_path / "outside", trustme.CA(), "localhost")
    public = {"tls_cert_file": outside / "tls.crt", "tls_key_file": outside / "tls.key"}
    config = RouterConfig(model="m", metrics_address="0.0.0.0:1", **public)
    assert config.metrics_tls == config.public_tls is not None
    config = RouterConfig(model="m", internal_tls_dir=folder, **public)
    assert config.metrics_tls == config.internal_tls is not None


def test_a_value_belongs_to_the_first_limit_that_is_not_smaller() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.add(value)
    histogram.add(1.25, 4)
    assert histogram.cumulative() == [(1.0, 2), (2.0, 8), (float("inf"), 9)]
    assert (histogram.count, histogram.sum) == (9, 13.0)
    family = Families(role="x").histogram("octavo_seconds", "Text.", histogram)
    shown = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert shown["octavo_seconds_bucket", "+Inf"] == shown["octavo_seconds_count", None] == 9
    assert (shown["octavo_seconds_bucket", "1.0"], shown["octavo_seconds_sum", None]) == (2, 13)


def test_a_histogram_may_be_read_while_it_is_added_to() -> None:
    """What is read is a histogram: counts that only grow from limit to limit, and over time."""
    histogram = Histogram(INTER_TOKEN_S)
    adding = threading.Thread(target=lambda: [histogram.add(i % 7 / 10) for i in range(100_000)])
    adding.start()
    seen = [0]
    while adding.is_alive():
        counts = [count for _, count in histogram.cumulative()]
        assert counts == sorted(counts) and counts[-1] >= seen[-1]
        seen.append(counts[-1])
    adding.join()
    assert histogram.count == 100_000
