"""The CPU's matrix unit (Intel AMX): eight tiles of sixteen rows of sixty-four bytes.

    configure()                             every thread, before its first tile of a kernel's range
    zero(0)
    load(1, a, a_stride)                    A [16, 32] bfloat16 or [16, 64] int8, rows as they are
    load(2, b, b_stride)                    B [32, 16] as [16][16][2], or [64, 16] as [16][16][4]:
                                            neighbours along the sum lie side by side
    dot_bf16(0, 1, 2)                       C [16, 16] float32 += A x B      dot_int8: int32
    store(0, c, c_stride)
    release()                               before the range ends, so that no state is left behind

Tile numbers are literals, addresses and strides (bytes) int64. An element of C depends on its row
of A and its column of B alone. bfloat16 sums treat subnormal numbers as zero.

The system gives tiles to a process that asks; where it refuses, or the CPU has none, HAS_* are
False and nothing here may be called.
"""

import ctypes
import platform
import sys

from llvmlite import binding, ir
from numba.core import cgutils, errors, types

from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import call

TILE_ROWS = 16
TILE_BYTES = 64  # of a row
NUM_TILES = 8

_SYS_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18

_I8 = ir.IntType(8)
_POINTER = _I8.as_pointer()
_VOID = ir.VoidType()
i64 = types.int64


def _is_permitted() -> bool:
    """Ask the system, for all threads of this process; asking twice is harmless."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    return bool(syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


def _available() -> tuple[bool, bool]:
    """(bfloat16, int8)"""
    features = binding.get_host_cpu_features()
    if not features.get("amx-tile") or not _is_permitted():
        return False, False
    return bool(features.get("amx-bf16")), bool(features.get("amx-int8"))


HAS_AMX_BF16, HAS_AMX_INT8 = _available()


def _tile_config() -> bytes:
    """All tiles in full size: palette 1, bytes of a row from byte 16 on, rows from byte 48 on."""
    config = bytearray(64)
    config[0] = 1
    for tile in range(NUM_TILES):
        config[16 + 2 * tile] = TILE_BYTES
        config[48 + tile] = TILE_ROWS
    return bytes(config)


def _tile(kind):
    """The number of a tile, which is part of the instruction."""
    if not isinstance(kind, types.IntegerLiteral):
        raise errors.RequireLiteralValue("the number of a tile must be a literal")
    if not 0 <= kind.literal_value < NUM_TILES:
        raise errors.TypingError(f"there is no tile {kind.literal_value}")
    return ir.Constant(_I8, kind.literal_value)


def _on_memory(name, tile, address, stride):
    number = _tile(tile)

    def generate(context, builder, signature, args):
        pointer = builder.inttoptr(args[1], _POINTER)
        call(builder, name, _VOID, number, pointer, args[2])
        return context.get_dummy_value()

    return types.none(tile, i64, i64), generate


def _on_tiles(name, *tiles):
    numbers = [_tile(tile) for tile in tiles]

    def generate(context, builder, signature, args):
        call(builder, name, _VOID, *numbers)
        return context.get_dummy_value()

    return types.none(*tiles), generate


@intrinsic
def configure(typing):
    """All tiles in full size."""

    def generate(context, builder, signature, args):
        content = ir.Constant(ir.ArrayType(_I8, 64), bytearray(_tile_config()))
        config = cgutils.global_constant(builder, "tile_config", content)
        call(builder, "llvm.x86.ldtilecfg", _VOID, builder.bitcast(config, _POINTER))
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def configure_from(typing, address):
    """Tiles of other sizes: the 64 bytes that `ldtilecfg` takes."""

    def generate(context, builder, signature, args):
        call(builder, "llvm.x86.ldtilecfg", _VOID, builder.inttoptr(args[0], _POINTER))
        return context.get_dummy_value()

    return types.none(i64), generate


@intrinsic
def release(typing):
    return _on_tiles("llvm.x86.tilerelease")


@intrinsic
def zero(typing, tile):
    return _on_tiles("llvm.x86.tilezero", tile)


@intrinsic
def load(typing, tile, address, stride):
    return _on_memory("llvm.x86.tileloadd64", tile, address, stride)


@intrinsic
def store(typing, tile, address, stride):
    return _on_memory("llvm.x86.tilestored64", tile, address, stride)


@intrinsic
def dot_bf16(typing, tile, a, b):
    """tile += a x b; two neighbours along the sum are added first."""
    return _on_tiles("llvm.x86.tdpbf16ps", tile, a, b)


@intrinsic
def dot_int8(typing, tile, a, b):
    """tile += a x b, both signed."""
    return _on_tiles("llvm.x86.tdpbssd", tile, a, b)
