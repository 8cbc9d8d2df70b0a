"""Names a block of KV by everything it was computed from.

    root    = H(algorithm, model fingerprint, adapter's)       one per model and adapter
    key(i)  = H(key(i-1), token ids of block i as little-endian u32)

H is blake2b with 16 bytes, keyed by the sharing group's secret: nobody outside the group can make
or guess a key, and equal prompts of two groups have nothing in common.
"""

import hashlib
import hmac
from array import array
from collections.abc import Sequence as Ids
from typing import NewType

BlockKey = NewType("BlockKey", bytes)

KEY_ALGORITHM = "blake2b-128/1"
KEY_BYTES = 16
GROUP_KEY_BYTES = 32
MAX_SALT_BYTES = 256


def group_key(secret: bytes, group: str, salt: str) -> bytes:
    """Derive the 32-byte key of a sharing group from the fleet's secret.

    Fields are typed by position and length-prefixed, so that no two (group, salt) pairs meet.
    """
    message = b"octavo-group" + _prefixed(group.encode()) + _prefixed(salt.encode())
    return hmac.digest(secret, message, "sha256")


def root_key(group: bytes, model_fingerprint: str, adapter: str = "") -> BlockKey:
    """Parent of a prompt's first block; adapter: a LoRA adapter's fingerprint, "" for none."""
    message = (
        _prefixed(KEY_ALGORITHM.encode())
        + _prefixed(model_fingerprint.encode())
        + _prefixed(adapter.encode())
    )
    return BlockKey(hashlib.blake2b(message, digest_size=KEY_BYTES, key=group).digest())


def block_key(group: bytes, parent: BlockKey, token_ids: Ids[int]) -> BlockKey:
    """Key of one full block whose prefix is named by `parent`."""
    message = parent + _u32(token_ids)
    return BlockKey(hashlib.blake2b(message, digest_size=KEY_BYTES, key=group).digest())


def block_keys(
    group: bytes, root: BlockKey, token_ids: Ids[int], block_size: int
) -> list[BlockKey]:
    """Keys of every full block of `token_ids`, in order."""
    keys: list[BlockKey] = []
    parent = root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = block_key(group, parent, token_ids[start : start + block_size])
        keys.append(parent)
    return keys


def prompt_digest(group: bytes, token_ids: Ids[int], adapter: str = "") -> bytes:
    """16 bytes that prove two workers mean the same prompt, its last partial block included, and
    the same adapter."""
    message = _u32(token_ids)
    if adapter:
        message = _prefixed(adapter.encode()) + message
    return hashlib.blake2b(message, digest_size=KEY_BYTES, key=group).digest()


def _u32(token_ids: Ids[int]) -> bytes:
    packed = array("I", token_ids)
    if packed.itemsize != 4:
        raise RuntimeError("this platform's unsigned int is not 32 bits")
    return packed.tobytes()  # little-endian on every platform we support (x86-64, Arm)


def _prefixed(field: bytes) -> bytes:
    return len(field).to_bytes(4, "little") + field
