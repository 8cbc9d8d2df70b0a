"""The secret that keys cached blocks, and where a fleet gets the same one from.

    --cache-secret-file (created on first start, or mounted)  >  Redis (first router's)  >  random

Equal secrets make equal block keys, so that routers and restarts find each other's blocks. Nobody
without it can make or guess a key.
"""

import asyncio
import logging
import os
import secrets
from pathlib import Path

from octavo.block_key import group_key
from octavo.registry.connection import BACKGROUND, RedisSettings, open_redis
from octavo.registry.errors import RegistryError
from octavo.registry.keys import ModelKeys

logger = logging.getLogger(__name__)

SECRET_BYTES = 32
SHARE_INTERVAL_S = 30.0
RETRY_INTERVAL_S = 1.0


class CacheSecret:
    """This router's secret; it may change once, when Redis turns out to hold another."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self._key_without_salt = (value, group_key(value, "", ""))

    def group_key_of(self, salt: str) -> bytes:
        """The 32-byte key of the sharing group that a cache salt names."""
        if salt:
            return group_key(self.value, "", salt)
        if self._key_without_salt[0] != self.value:
            self._key_without_salt = (self.value, group_key(self.value, "", ""))
        return self._key_without_salt[1]


def read_or_create(path: Path) -> bytes:
    """Read a secret file; make one of mode 0600 if there is none. Racing routers read the same.

    Raises:
        ValueError: the file is too short.
        OSError: it cannot be read or made.
    """
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        try:
            os.link(draft, path)  # whole or not at all, and never over another's
        except FileExistsError:
            logger.debug("another router has just made %s", path)
        finally:
            draft.unlink()
    value = path.read_bytes()
    if len(value) < SECRET_BYTES:
        raise ValueError(f"{path} has {len(value)} bytes, a secret needs at least {SECRET_BYTES}")
    return value


async def share_through_redis(
    secret: CacheSecret, settings: RedisSettings, fingerprint: str
) -> None:
    """Agree with the other routers of a model, again and again; never returns.

    Whoever comes first decides. A Redis that restarted empty is given the secret again.
    """
    redis = open_redis(settings, BACKGROUND)
    key = f"octavo:{{{ModelKeys.of(fingerprint).tag}}}:secret"
    try:
        while True:
            try:
                await redis.command("SET", key, secret.value, "NX")
                shared = await redis.command("GET", key)
            except RegistryError as error:
                logger.debug("cannot share the cache secret: %s", error)
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            if isinstance(shared, bytes) and len(shared) >= SECRET_BYTES:
                secret.value = shared
            await asyncio.sleep(SHARE_INTERVAL_S)
    finally:
        await redis.aclose()
