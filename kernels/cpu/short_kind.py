"""By which instructions attention multiplies 16 bits on this CPU, with one query row in each lane.

    tiles      the CPU's matrix unit, bfloat16                     (tile_attention.py)
    pairs      dot products of two bfloat16 neighbours in lanes    (pair_attention.py)
    integers   the same of 16-bit integers, to which rows of       (integer_attention.py)
               bfloat16 or float16 are scaled

A kind is a numpy scalar that only lends its type, as the formats of vector.py do.
"""

import numpy as np
import torch
from llvmlite import ir
from numba.core import types

from octavo.kernels.cpu import amx
from octavo.kernels.cpu.integer_dot import HAS_INTEGERS
from octavo.kernels.cpu.jit import inlined, intrinsic
from octavo.kernels.cpu.pair_dot import HAS_PAIRS
from octavo.kernels.cpu.vector import format_of

SHORT = format_of(torch.bfloat16)
PAIRS = SHORT
TILES = np.uint8(0)
INTEGERS = np.int32(0)


def short_kind(dtype: torch.dtype) -> np.generic | None:
    """The fastest kind this CPU has for a dtype; None where it multiplies float32 alone."""
    if dtype == torch.float32:
        return None
    if dtype == torch.bfloat16 and HAS_PAIRS:
        return TILES if amx.HAS_AMX_BF16 else PAIRS
    return INTEGERS if HAS_INTEGERS else None


@intrinsic
def are_tiles(typing, kind):
    """A constant that the compiler sees: what it excludes is not compiled."""

    def generate(context, builder, signature, args):
        return ir.Constant(ir.IntType(1), int(kind == types.uint8))

    return types.boolean(kind), generate


@intrinsic
def are_integers(typing, kind):
    """As `are_tiles`."""

    def generate(context, builder, signature, args):
        return ir.Constant(ir.IntType(1), int(kind == types.int32))

    return types.boolean(kind), generate


@inlined
def begin_products(kind):
    """On every thread, before its first product of a kernel's range of items."""
    if are_tiles(kind):
        amx.configure()


@inlined
def end_products(kind):
    if are_tiles(kind):
        amx.release()
