"""A model's layers with the adapters of one step beside their products.

    layer.qkv(x)  becomes  layer.qkv(x), and to the rows of each adapter is added what it gives

Decided once a step: what runs between two products is the same code as ever.
"""

from dataclasses import replace
from functools import partial

import torch

from octavo.engine.adapter import LowRank, Rows
from octavo.engine.adapter_rows import AdapterRows
from octavo.engine.models.layer import LayerWeights
from octavo.kernels.select import Linear

Part = tuple[LowRank | None, Rows]


def adapted_layers(
    layers: list[LayerWeights], adapters: tuple[AdapterRows, ...], *, samples_all: bool
) -> list[LayerWeights]:
    """Layers for one step.

    samples_all: False where the last layer drops rows behind its attention (see decoder.py).
    """
    last = len(layers) - 1
    return [
        _adapted_layer(layer, index, adapters, keeps_all=samples_all or index < last)
        for index, layer in enumerate(layers)
    ]


def _adapted_layer(
    layer: LayerWeights, index: int, adapters: tuple[AdapterRows, ...], *, keeps_all: bool
) -> LayerWeights:
    own = [(each.adapter.layers[index], each) for each in adapters]
    behind = [(low, each.rows if keeps_all else each.logit_rows) for low, each in own]
    return replace(
        layer,
        qkv=_adapted(layer.qkv, [(low.qkv, each.rows) for low, each in own]),
        o=_adapted(layer.o, [(low.o, rows) for low, rows in behind]),
        gate_up=_adapted(layer.gate_up, [(low.gate_up, rows) for low, rows in behind]),
        down=_adapted(layer.down, [(low.down, rows) for low, rows in behind]),
    )


def _adapted(product: Linear, parts: list[Part]) -> Linear:
    there = [(low, rows) for low, rows in parts if low is not None and not _are_none(rows)]
    return partial(_multiply, product, there) if there else product


def _multiply(product: Linear, parts: list[tuple[LowRank, Rows]], x: torch.Tensor) -> torch.Tensor:
    out = product(x)
    for low, rows in parts:
        low.add_to(out, x, rows)
    return out


def _are_none(rows: Rows) -> bool:
    return isinstance(rows, slice) and rows.start == rows.stop
