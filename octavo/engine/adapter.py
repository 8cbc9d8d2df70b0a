"""A LoRA adapter as the engine holds it: for each layer and product, two thin products in a row.

    x [T, K] --down--> [T, R], the ranks of all parts --up of each part--> its columns, added

q, k and v are one product of the model, so are gate and up: their parts share `down`.
"""

from dataclasses import dataclass

import torch

from octavo.kernels.select import Linear

Rows = torch.Tensor | slice  # of a step: int64 indices, or a run of them


@dataclass(frozen=True, slots=True)
class Up:
    """One projection's own half."""

    ranks: slice  # of what `down` gives
    columns: slice  # of the product it belongs to
    product: Linear  # [T, rank] -> [T, width], scaled


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one product of one layer."""

    down: Linear  # [T, K] -> [T, R]
    ups: tuple[Up, ...]

    def add_to(self, out: torch.Tensor, x: torch.Tensor, rows: Rows) -> None:
        """Add to `rows` of out [T, N] what those of x [T, K] give; each depends on itself alone."""
        hidden = self.down(x[rows])
        for up in self.ups:
            out[rows, up.columns] += up.product(hidden[:, up.ranks])


@dataclass(frozen=True, slots=True)
class AdapterLayer:
    """One layer's products; None: left as they are."""

    qkv: LowRank | None
    o: LowRank | None
    gate_up: LowRank | None
    down: LowRank | None


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A loaded adapter; it lives as long as a sequence that uses it."""

    name: str
    fingerprint: str  # 32 hex digits, of ranks, scales and weights
    rank: int  # the largest
    layers: tuple[AdapterLayer, ...]
