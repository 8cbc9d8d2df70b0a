"""The CPU's vector registers, and LLVM code for values that fill one: product tiles are cut to fit.

                        registers   float32 lanes
    AVX-512                    32              16
    AVX2, SSE                  16            8, 4
    others (NEON)              32               4

`vector.py` is the same on every CPU; a 16-lane vector of it is SPLIT of these.
"""

from llvmlite import binding, ir
from numba.core import types
from numba.core.registry import cpu_target

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.lanes import F32, I32, I64, LANES, MEMORY


def _registers() -> tuple[int, int]:
    """(how many there are, float32 lanes of each)"""
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 32, 16
    if features.get("avx2"):
        return 16, 8
    return (16 if features.get("sse2") else 32), 4


# What the compiler may use; less than the CPU has, if numba was told so.
FEATURES = frozenset(cpu_target.target_context.codegen()._tm_features.split(","))
NUM_REGISTERS, WIDTH = _registers()
SPLIT = LANES // WIDTH
REGISTER = ir.VectorType(F32, WIDTH)
ZERO = ir.Constant(REGISTER, None)
_WORDS = ir.VectorType(I32, WIDTH)


def _lane_numbers(numbers):
    return ir.Constant(ir.VectorType(I32, len(numbers)), numbers)


def load(builder, address, index):
    """WIDTH floats from element `index` of the array at `address`."""
    return builder.load(lanes.pointer(builder, address, index, 4, REGISTER), align=4)


def store(builder, address, index, v):
    builder.store(v, lanes.pointer(builder, address, index, 4, v.type), align=4)


def splat(builder, scalar):
    first = builder.insert_element(ir.Constant(REGISTER, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(_WORDS, [0] * WIDTH))


def fma(builder, a, b, c):
    return lanes.call(builder, f"llvm.fmuladd.v{WIDTH}f32", REGISTER, a, b, c)


def parts(builder, v):
    """A 16-lane vector as SPLIT registers."""
    return [
        builder.shuffle_vector(v, v, ir.Constant(_WORDS, list(range(i, i + WIDTH))))
        for i in range(0, LANES, WIDTH)
    ]


def joined(builder, registers):
    """SPLIT registers as a 16-lane vector."""
    while len(registers) > 1:
        size = 2 * registers[0].type.count
        mask = ir.Constant(ir.VectorType(I32, size), list(range(size)))
        registers = [
            builder.shuffle_vector(a, b, mask)
            for a, b in zip(registers[::2], registers[1::2], strict=True)
        ]
    return registers[0]


def arrangement(format):
    """Where each of sixteen elements of a row stands in what `load_row` returns.

    bfloat16 is widened without a shuffle where a register has room for half of its elements only:
    those with even numbers by a shift, the others by a mask.
    """
    if format != types.uint16 or SPLIT == 1:
        return list(range(LANES))
    starts = range(0, LANES, 2 * WIDTH)
    return [base + 2 * i + odd for base in starts for odd in (0, 1) for i in range(WIDTH)]


def _load_part(builder, format, address, column, part):
    """A part of the elements column .. column + 15 in the order of `arrangement`: one register."""
    kind, item_bytes = MEMORY[format]
    if format != types.uint16 or SPLIT == 1:
        kind = ir.VectorType(kind.element, WIDTH)
        index = builder.add(column, I64(part * WIDTH))
        source = lanes.pointer(builder, address, index, item_bytes, kind)
        return lanes.widen(builder, builder.load(source, align=item_bytes))
    index = builder.add(column, I64(part // 2 * 2 * WIDTH))
    source = lanes.pointer(builder, address, index, item_bytes, _WORDS)
    both = builder.load(source, align=item_bytes)
    if part % 2 == 0:
        half = builder.shl(both, ir.Constant(_WORDS, [16] * WIDTH))
    else:
        half = builder.and_(both, ir.Constant(_WORDS, [0xFFFF0000] * WIDTH))
    return builder.bitcast(half, REGISTER)


def load_row(builder, format, address, column):
    """Elements column .. column + 15 as SPLIT float32 registers, in the order of `arrangement`."""
    return [_load_part(builder, format, address, column, part) for part in range(SPLIT)]


def in_order(builder, values):
    """values, opaque to the compiler, which must have all of them before it goes on.

    Where registers are few it would do first what can be done early, and put sums into memory and
    back: with AVX2 that costs a third of a product's time.
    """
    if WIDTH != 8 or "+avx2" not in FEATURES:
        return values
    kinds = [v.type for v in values]
    places = ["=x"] * len(values) + [str(i) for i in range(len(values))]
    kind = ir.FunctionType(ir.LiteralStructType(kinds), kinds)
    same = builder.asm(kind, "", ",".join(places), values, side_effect=False)
    return [builder.extract_value(same, i) for i in range(len(values))]


def add_neighbours(builder, vectors):
    """Sums of the lanes of at most WIDTH registers, a power of two: one a lane, as many as those.

    Four neighbours first, which every CPU shuffles within 128 bits at once, then sums of those.
    """
    fours = range(0, WIDTH, 4)
    within = [start + i for first in fours for start in (first, WIDTH + first) for i in (0, 2)]
    across = [first + i for first in range(0, 2 * WIDTH, 8) for i in range(4)]
    steps = [(within, 1)] * 2 + [(across, 4)] * (WIDTH // 4).bit_length()
    for even, distance in steps[: WIDTH.bit_length() - 1]:
        if len(vectors) == 1:  # fewer lanes from now on
            vectors, even = vectors * 2, even[: vectors[0].type.count // 2]
        odd = [index + distance for index in even]
        vectors = [
            builder.fadd(
                builder.shuffle_vector(a, b, _lane_numbers(even)),
                builder.shuffle_vector(a, b, _lane_numbers(odd)),
            )
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]
