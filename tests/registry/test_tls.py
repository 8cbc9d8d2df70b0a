"""rediss:// with a password and certificates on both sides, made by openssl here."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from octavo.registry.announcer import WorkerAnnouncer
from octavo.registry.connection import BACKGROUND, RedisSettings, open_redis
from octavo.registry.directory import WorkerDirectory
from octavo.registry.errors import RedisUnavailable
from octavo.registry.index import PrefixIndex
from registry.redis_server import RedisServer, binary, eventually, free_port, need_directive
from registry.workers import FINGERPRINT, RECORD, block_keys

PASSWORD = "correct horse@battery/staple"
KEYS = block_keys(8)


@dataclass(frozen=True)
class Certificates:
    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def make(self, name: str, *, signer: str | None) -> None:
        """NAME.key and NAME.pem, valid for 127.0.0.1, signed by `signer` or by itself."""
        signed_by = (
            ["-CA", self.path(f"{signer}.pem"), "-CAkey", self.path(f"{signer}.key")]
            if signer
            else []
        )
        names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.pem")]
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command = [binary("openssl"), "req", "-x509", "-days", "1"]
        subprocess.run(
            [*command, *key, *names, *files, *signed_by], check=True, capture_output=True
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    need_directive("tls-cert-file")
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.make("authority", signer=None)
    for name in ("server", "client"):
        made.make(name, signer="authority")
    made.make("stranger", signer=None)
    return made


@pytest.fixture
def settings(certificates: Certificates, tmp_path: Path) -> Iterator[RedisSettings]:
    port = free_port()
    options = [
        *("--tls-port", str(port), "--requirepass", PASSWORD, "--tls-auth-clients", "yes"),
        *("--tls-cert-file", certificates.path("server.pem")),
        *("--tls-key-file", certificates.path("server.key")),
        *("--tls-ca-cert-file", certificates.path("authority.pem")),
    ]
    with RedisServer(tmp_path / "redis", *options):
        yield RedisSettings(
            f"rediss://127.0.0.1:{port}/0",
            password=PASSWORD,
            ca_file=certificates.path("authority.pem"),
            cert_file=certificates.path("client.pem"),
            key_file=certificates.path("client.key"),
        )


async def held() -> list[bytes]:
    return KEYS


async def test_worker_and_router_meet_over_tls(settings: RedisSettings) -> None:
    async with (
        WorkerAnnouncer(settings, RECORD, held),
        PrefixIndex(settings, FINGERPRINT) as index,
        WorkerDirectory(settings, [FINGERPRINT]) as directory,
    ):

        async def meet() -> bool:
            found = await index.lookup(KEYS, [(RECORD.worker_id, RECORD.epoch)])
            return found == {RECORD.worker_id: 8} and directory.workers() == [RECORD]

        await eventually(meet)


async def test_options_in_the_url_do_the_same(
    settings: RedisSettings, certificates: Certificates
) -> None:
    query = "&".join(
        f"{name}={certificates.path(file)}"
        for name, file in [
            ("ssl_ca_certs", "authority.pem"),
            ("ssl_certfile", "client.pem"),
            ("ssl_keyfile", "client.key"),
        ]
    )
    url = settings.url.replace("//", "//:correct%20horse%40battery%2Fstaple@")
    redis = open_redis(RedisSettings(f"{url}?{query}"), BACKGROUND)
    assert await redis.command("ECHO", "hello") == b"hello"
    await redis.aclose()


async def test_an_untrusted_server_a_wrong_password_and_a_stranger_are_refused(
    settings: RedisSettings, certificates: Certificates
) -> None:
    for wrong in (
        replace(settings, ca_file=certificates.path("stranger.pem")),
        replace(settings, password="wrong"),
        replace(
            settings,
            cert_file=certificates.path("stranger.pem"),
            key_file=certificates.path("stranger.key"),
        ),
        replace(settings, ca_file=None, cert_file=None, key_file=None),
    ):
        redis = open_redis(wrong, BACKGROUND)
        with pytest.raises(RedisUnavailable) as caught:
            await redis.command("ECHO", "hello")
        assert PASSWORD not in str(caught.value)
        await redis.aclose()
        async with PrefixIndex(wrong, FINGERPRINT) as index:
            assert await index.lookup(KEYS, [(RECORD.worker_id, RECORD.epoch)]) == {}
