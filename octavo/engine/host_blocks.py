"""Copies of blocks of KV in host memory, pinned where the pool is on a GPU.

    kv[block_id]  --save-->  host[host_id]  --load-->  kv[another block_id]

A copy has ended when the call returns: its source may be given to anybody at once, to a copying
thread too. On the CPU the memory is mapped where it is first written.
"""

from collections.abc import Sequence as Ids

import torch

from octavo.engine.host_memory import zeros
from octavo.engine.kv_cache import KVCache


class HostBlocks:
    """Room for num_blocks blocks of one cache; torch pins powers of two of bytes."""

    def __init__(self, kv_cache: KVCache, num_blocks: int) -> None:
        self._blocks = kv_cache.blocks
        shape = (num_blocks, kv_cache.block_bytes)
        if self._blocks.is_cuda:
            self._host = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        else:
            self._host = zeros(shape, torch.uint8)

    def save(self, block_ids: Ids[int], host_ids: Ids[int]) -> None:
        """Copy each block out to the host block in the same place of the other list."""
        for block_id, host_id in zip(block_ids, host_ids, strict=True):
            self._host[host_id].copy_(self._blocks[block_id], non_blocking=True)
        self._wait()

    def load(self, host_ids: Ids[int], block_ids: Ids[int]) -> None:
        """Copy each host block in."""
        for host_id, block_id in zip(host_ids, block_ids, strict=True):
            self._blocks[block_id].copy_(self._host[host_id], non_blocking=True)
        self._wait()

    def _wait(self) -> None:
        if self._blocks.is_cuda:
            # The stream of the steps: what they wrote is there, what they will read is, too.
            torch.cuda.current_stream(self._blocks.device).synchronize()
