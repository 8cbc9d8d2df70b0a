"""Worker records and prompts for registry tests."""

import hashlib
from dataclasses import replace

from octavo.registry.connection import RedisConnection
from octavo.registry.lease import WorkerLease
from octavo.registry.records import WorkerRecord

FINGERPRINT = "0123456789abcdef"

RECORD = WorkerRecord(
    worker_id="prefill-0",
    role="prefill",
    address="127.0.0.1:50051",
    epoch=2**63 - 25,
    model="tiny",
    fingerprint=FINGERPRINT,
    layout="float32/2/2/16/16",
    capacity_blocks=256,
    max_context_tokens=2048,
)


def worker(worker_id: str, epoch: int) -> WorkerRecord:
    return replace(RECORD, worker_id=worker_id, epoch=epoch)


def block_keys(count: int, prompt: str = "prompt") -> list[bytes]:
    return [
        hashlib.blake2b(f"{prompt} {i}".encode(), digest_size=16).digest() for i in range(count)
    ]


def lease_of(redis: RedisConnection, record: WorkerRecord, *, lease_s: float = 10) -> WorkerLease:
    return WorkerLease(redis, record, lease_s=lease_s, block_life_s=3600)
