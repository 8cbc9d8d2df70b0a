"""Names of the keys that one model has in Redis.

    octavo:{m}:workers      SET of worker ids
    octavo:{m}:w:<id>       HASH of one worker's record; expires unless renewed
    octavo:{m}:b:<key>      HASH worker id -> epoch; expires unless published again

`{m}` is a hash tag, so that a Cluster keeps all keys of a model in one slot and one script can
touch them all. Block keys are appended raw: 16 bytes instead of 32 on the wire and in memory.
"""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelKeys:
    tag: str

    @classmethod
    def of(cls, fingerprint: str) -> "ModelKeys":
        """Keys of the model with this fingerprint; any string makes a safe tag."""
        return cls(hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest())

    @property
    def workers(self) -> bytes:
        return f"octavo:{{{self.tag}}}:workers".encode()

    @property
    def worker_prefix(self) -> bytes:
        return f"octavo:{{{self.tag}}}:w:".encode()

    @property
    def block_prefix(self) -> bytes:
        return f"octavo:{{{self.tag}}}:b:".encode()

    def worker(self, worker_id: str) -> bytes:
        return self.worker_prefix + worker_id.encode()

    def block(self, block_key: bytes) -> bytes:
        return self.block_prefix + block_key
