"""Which tile sizes, warps and pipeline stages an attention kernel uses: a small table, no search.

A tile is block_m query rows (heads of one group times tokens) by block_n cached tokens; K and V
tiles wait in shared memory, one of each per pipeline stage. The numbers were chosen with
`python -m octavo.kernels.compile_table`, which must show no spill for any of them: registers hold
the [block_m, head_dim] float32 accumulator, shared memory holds the stages.

sm_80 serves every NVIDIA GPU but the data-centre Hopper and Blackwell ones: its tiles stay within
99 KiB of shared memory, what consumer Ampere, Ada and Blackwell have, far below the A100's 163.
sm_89 stands for those of them that compute with fp8.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import torch

Arch = Literal["sm_80", "sm_89", "sm_90", "gfx942"]


@dataclass(frozen=True, slots=True)
class Tile:
    """Size of one attention tile and how a program works on it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a launcher must know of the device."""

    arch: Arch
    num_cores: int  # streaming multiprocessors or compute units


# {arch: {bytes per element: {padded head_dim: Tile}}}; block_m of a decode tile is a floor.
_DECODE: dict[Arch, dict[int, dict[int, Tile]]] = {
    "sm_80": {
        2: {64: Tile(16, 64, 4, 3), 128: Tile(16, 64, 4, 3), 256: Tile(16, 32, 4, 3)},
        4: {64: Tile(16, 32, 4, 2), 128: Tile(16, 16, 4, 2), 256: Tile(16, 16, 4, 2)},
    },
    "sm_90": {
        2: {64: Tile(16, 64, 4, 3), 128: Tile(16, 64, 4, 3), 256: Tile(16, 64, 4, 2)},
        4: {64: Tile(16, 32, 4, 2), 128: Tile(16, 32, 8, 2), 256: Tile(16, 16, 4, 2)},
    },
    "gfx942": {
        2: {64: Tile(16, 32, 4, 2), 128: Tile(16, 32, 4, 2), 256: Tile(16, 32, 4, 2)},
        4: {64: Tile(16, 32, 4, 2), 128: Tile(16, 32, 4, 2), 256: Tile(16, 16, 4, 2)},
    },
}
_PREFILL: dict[Arch, dict[int, dict[int, Tile]]] = {
    "sm_80": {
        2: {64: Tile(128, 64, 8, 3), 128: Tile(128, 32, 8, 3), 256: Tile(64, 32, 8, 3)},
        4: {64: Tile(32, 16, 4, 2), 128: Tile(32, 16, 4, 2), 256: Tile(16, 16, 8, 2)},
    },
    "sm_90": {
        2: {64: Tile(128, 64, 8, 3), 128: Tile(128, 64, 8, 3), 256: Tile(128, 32, 8, 3)},
        4: {64: Tile(32, 32, 8, 2), 128: Tile(32, 16, 8, 2), 256: Tile(16, 16, 8, 2)},
    },
    "gfx942": {
        2: {64: Tile(128, 32, 4, 2), 128: Tile(128, 32, 4, 2), 256: Tile(64, 32, 4, 1)},
        4: {64: Tile(32, 32, 4, 2), 128: Tile(32, 16, 4, 2), 256: Tile(16, 16, 4, 2)},
    },
}

_DECODE["sm_89"], _PREFILL["sm_89"] = _DECODE["sm_80"], _PREFILL["sm_80"]


def decode_tile(gpu: Gpu, head_dim_pad: int, dtype: torch.dtype) -> Tile:
    """The tile of one decode program: the query heads of one KV head by block_n cached tokens."""
    return _DECODE[gpu.arch][dtype.itemsize][max(head_dim_pad, 64)]


def prefill_tile(gpu: Gpu, head_dim_pad: int, dtype: torch.dtype) -> Tile:
    """The tile of one prefill program."""
    return _PREFILL[gpu.arch][dtype.itemsize][max(head_dim_pad, 64)]


@functools.cache
def gpu_of(device: torch.device) -> Gpu:
    """The device behind a tensor. A CPU tensor means the interpreter: a small sm_80."""
    if device.type != "cuda":
        return Gpu(arch="sm_80", num_cores=4)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return Gpu(arch="gfx942", num_cores=properties.multi_processor_count)
    arch: Arch = "sm_80"
    if properties.major in (9, 10):
        arch = "sm_90"
    elif (properties.major, properties.minor) >= (8, 9):
        arch = "sm_89"
    return Gpu(arch=arch, num_cores=properties.multi_processor_count)
