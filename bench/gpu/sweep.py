"""Other tiles and numbers of splits for one attention call, the fastest first."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import torch
from cases import Case

from octavo.kernels.gpu.decode_attention import MAX_SPLITS, decode_splits, plan_decode_attention
from octavo.kernels.gpu.launch import Launch
from octavo.kernels.gpu.prefill_attention import plan_prefill_attention
from octavo.kernels.gpu.tiles import Tile, decode_tile, gpu_of, prefill_tile

DECODE_TILES = [
    Tile(16, n, warps, stages) for n in (32, 64, 128) for warps in (2, 4, 8) for stages in (2, 3, 4)
]
PREFILL_TILES = [
    Tile(m, n, warps, stages)
    for m in (64, 128)
    for n in (32, 64, 128)
    for warps in (4, 8)
    for stages in (2, 3)
]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way of running a call."""

    tile: Tile
    num_splits: int  # 0: a prefill has none
    launches: list[Launch]
    is_default: bool

    def run(self) -> None:
        for launch in self.launches:
            launch.run()

    @property
    def name(self) -> str:
        tile = self.tile
        name = f"{tile.block_m} x {tile.block_n}, {tile.num_warps} warps, {tile.num_stages} stages"
        return f"{name}, {self.num_splits} splits" if self.num_splits else name


def candidates(case: Case) -> Iterator[Candidate]:
    """The default first."""
    call = case.call
    assert call is not None
    gpu, out = gpu_of(call.query.device), torch.empty_like(call.query)
    if case.query_start is not None:
        own = prefill_tile(gpu, call.head_dim_pad, call.query.dtype)
        for tile in [own, *(tile for tile in PREFILL_TILES if tile != own)]:
            launch = plan_prefill_attention(out, call, case.query_start, tile)
            yield Candidate(tile, 0, [launch], tile == own)
        return
    own, own_splits = (
        decode_tile(gpu, call.head_dim_pad, call.query.dtype),
        decode_splits(call, gpu),
    )
    splits = sorted({max(1, own_splits // 2), own_splits, min(2 * own_splits, MAX_SPLITS)})
    ways = list(itertools.product(DECODE_TILES, splits))
    default = (own, own_splits)
    for tile, num_splits in [default, *(way for way in ways if way != default)]:
        launches = plan_decode_attention(out, call, tile, num_splits)
        yield Candidate(tile, num_splits, launches, (tile, num_splits) == default)


def sweep(
    case: Case, time_ms: Callable[[Callable[[], object]], float], deadline: float
) -> list[tuple[float, Candidate]]:
    """(ms, candidate) of those that ran before the deadline, fastest first."""
    measured = []
    for candidate in candidates(case):
        if monotonic() > deadline:
            break
        try:
            measured.append((time_ms(candidate.run), candidate))
        except Exception as error:  # a tile may ask for more than this GPU has
            if "out of resource" not in str(error):
                raise
    return sorted(measured, key=lambda pair: pair[0])
