"""How many blocks of KV a device has room for.

CPU:  a byte budget; by default a quarter of the free memory, at most 2 GiB
GPU:  utilization * total - (own weights + the peak of a step of the largest size), or what is free
swap: host memory, by default as large as the pool, at most a quarter of what is free, and 1 GiB
      beside a pool on the CPU (mapped as it is used) or 4 GiB beside one on a GPU (pinned)
"""

import os
from pathlib import Path

import torch

from octavo.engine.batch import Batch
from octavo.engine.kv_cache import KVCache, KVLayout
from octavo.engine.model_runner import Model

MAX_DEFAULT_CPU_BYTES = 2 * 2**30
DEFAULT_CPU_SHARE = 4
MAX_DEFAULT_SWAP_BYTES = {"cpu": 2**30, "cuda": 4 * 2**30}
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class NotEnoughMemory(Exception):
    """There is no room for a single block of KV."""


def num_blocks_within(num_bytes: int, layout: KVLayout) -> int:
    """Blocks in a budget.

    Raises:
        NotEnoughMemory: not even one.
    """
    if num_bytes < layout.block_bytes:
        raise NotEnoughMemory(
            f"{max(num_bytes, 0)} bytes are left for KV, one block needs {layout.block_bytes}"
        )
    return num_bytes // layout.block_bytes


def num_swap_blocks(num_bytes: int | None, kv_cache: KVCache) -> int:
    """Blocks of host memory for swap, in a budget or by default; may be none."""
    if num_bytes is not None:
        return num_bytes // kv_cache.block_bytes
    most = MAX_DEFAULT_SWAP_BYTES[kv_cache.kv.device.type]
    num_bytes = min(most, free_cpu_bytes() // DEFAULT_CPU_SHARE)
    return min(num_bytes // kv_cache.block_bytes, kv_cache.num_blocks)


def default_cpu_bytes() -> int:
    return min(MAX_DEFAULT_CPU_BYTES, free_cpu_bytes() // DEFAULT_CPU_SHARE)


def free_cpu_bytes() -> int:
    """What this process could still take: of the machine, and of its control group if limited."""
    if MEMINFO.exists():
        fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if CGROUP_LIMIT.exists() and (limit := CGROUP_LIMIT.read_text().strip()) != "max":
        free = min(free, int(limit))
    return free


def free_gpu_bytes(
    model: Model, layout: KVLayout, num_tokens: int, num_seqs: int, utilization: float
) -> int:
    """What is left for KV on the current GPU after a profile run beside the loaded weights.

    `utilization` is this process's share: several workers may divide one GPU between them.
    """
    device = torch.device("cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    free_before, total = torch.cuda.mem_get_info()
    held_before = torch.cuda.memory_reserved()
    kv = KVCache(layout, 1, device).kv
    with torch.inference_mode():
        model.forward(profile_batch(num_tokens, num_seqs, layout.block_size, device), kv)
    torch.cuda.synchronize()
    grown = torch.cuda.max_memory_reserved() - held_before
    del kv
    torch.cuda.empty_cache()
    return min(int(total * utilization) - held_before, free_before) - grown


def profile_batch(num_tokens: int, num_seqs: int, block_size: int, device: torch.device) -> Batch:
    """A step of num_tokens prompt tokens and num_seqs rows of logits, all of it in block 0."""
    starts = [*range(0, num_tokens, block_size), num_tokens]
    positions = torch.arange(num_tokens, device=device) % block_size
    seq_lens = [end - start for start, end in zip(starts, starts[1:], strict=False)]
    return Batch(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64, device=device),
        positions=positions,
        slot_mapping=positions,
        block_tables=torch.zeros((len(seq_lens), 1), dtype=torch.int32, device=device),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        query_start=torch.tensor(starts, dtype=torch.int32, device=device),
        num_decodes=0,
        logit_rows=torch.arange(min(num_seqs, num_tokens), device=device),
    )
