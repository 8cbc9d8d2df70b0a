"""What a worker tells the fleet about itself.

Redis may hold anything under our keys, so a record that is read is checked field by field; one that
does not pass is dropped and counted by the reader.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from octavo.registry.keys import ModelKeys

Role = Literal["prefill", "decode"]

ROLES = ("prefill", "decode")
MAX_TEXT_BYTES = 512
MAX_COUNT = 2**53 - 1
MAX_EPOCH = 2**64 - 1

# Fields of the hash, in the order in which they are read.
FIELDS = (
    "role",
    "address",
    "epoch",
    "model",
    "fingerprint",
    "layout",
    "capacity_blocks",
    "max_context_tokens",
)


class MalformedRecord(ValueError):
    """A worker record that no worker of ours has written."""


def new_epoch() -> int:
    """Name of one incarnation of a worker; 63 bits, which Redis stores as an integer."""
    return secrets.randbits(63) or 1


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    worker_id: str
    role: Role
    address: str  # host:port, or unix:path
    epoch: int
    model: str
    fingerprint: str
    layout: str  # workers of equal layout can exchange blocks
    capacity_blocks: int
    max_context_tokens: int

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise MalformedRecord(f"role must be prefill or decode, got {self.role!r}")
        for name in ("worker_id", "address", "model", "fingerprint", "layout"):
            _check_text(name, getattr(self, name))
        if " " in self.address or not self.address.isascii():
            raise MalformedRecord(f"not an address: {self.address!r}")
        if not 0 < self.epoch <= MAX_EPOCH:
            raise MalformedRecord(f"epoch must be in 1..{MAX_EPOCH}, got {self.epoch}")
        for name in ("capacity_blocks", "max_context_tokens"):
            if not 0 < getattr(self, name) <= MAX_COUNT:
                raise MalformedRecord(f"{name} must be in 1..{MAX_COUNT}")

    @property
    def keys(self) -> ModelKeys:
        return ModelKeys.of(self.fingerprint)

    def to_fields(self) -> dict[str, str]:
        """The record's hash in Redis; the worker id is part of the key."""
        return {name: str(getattr(self, name)) for name in FIELDS}

    @classmethod
    def from_fields(cls, worker_id: str, values: Sequence[object]) -> "WorkerRecord":
        """Read the values of FIELDS as Redis returned them. Raises MalformedRecord."""
        if len(values) != len(FIELDS):
            raise MalformedRecord(f"{len(values)} fields, expected {len(FIELDS)}")
        texts = dict(zip(FIELDS, map(_text, values), strict=True))
        return cls(
            worker_id=worker_id,
            role=cast(Role, texts["role"]),
            address=texts["address"],
            epoch=_integer(texts["epoch"]),
            model=texts["model"],
            fingerprint=texts["fingerprint"],
            layout=texts["layout"],
            capacity_blocks=_integer(texts["capacity_blocks"]),
            max_context_tokens=_integer(texts["max_context_tokens"]),
        )


def decode_worker_id(value: object) -> str:
    """A worker id as Redis returned it. Raises MalformedRecord."""
    worker_id = _text(value)
    _check_text("worker_id", worker_id)
    return worker_id


def _text(value: object) -> str:
    if not isinstance(value, bytes) or len(value) > MAX_TEXT_BYTES:
        raise MalformedRecord("a field is missing or too long")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MalformedRecord("a field is not UTF-8") from error


def _check_text(name: str, text: str) -> None:
    if not text or not text.isprintable() or len(text.encode()) > MAX_TEXT_BYTES:
        raise MalformedRecord(f"{name} must be 1..{MAX_TEXT_BYTES} printable bytes")


def _integer(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise MalformedRecord("a number is not one")
    return int(text)
