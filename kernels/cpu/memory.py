"""Raw memory inside numba code: int64 addresses to integers, buffers, copies and prefetches."""

from llvmlite import ir
from numba import carray  # type: ignore[attr-defined]
from numba.core import errors, types

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.jit import inlined, intrinsic
from octavo.kernels.cpu.lanes import I32, I64

i64 = types.int64


@intrinsic
def read_i32(typing, address, index):
    def generate(context, builder, signature, args):
        address, index = args
        source = lanes.pointer(builder, address, index, 4, I32)
        return builder.sext(builder.load(source), I64)

    return i64(i64, i64), generate


@intrinsic
def write_i32(typing, address, index, value):
    def generate(context, builder, signature, args):
        address, index, value = args
        builder.store(builder.trunc(value, I32), lanes.pointer(builder, address, index, 4, I32))
        return context.get_dummy_value()

    return types.none(i64, i64, i64), generate


@intrinsic
def read_i64(typing, address, index):
    def generate(context, builder, signature, args):
        address, index = args
        return builder.load(lanes.pointer(builder, address, index, 8, I64))

    return i64(i64, i64), generate


@intrinsic
def write_i64(typing, address, index, value):
    def generate(context, builder, signature, args):
        address, index, value = args
        builder.store(value, lanes.pointer(builder, address, index, 8, I64))
        return context.get_dummy_value()

    return types.none(i64, i64, i64), generate


@intrinsic
def read_f32(typing, address, index):
    def generate(context, builder, signature, args):
        address, index = args
        return builder.load(lanes.pointer(builder, address, index, 4, lanes.F32))

    return types.float32(i64, i64), generate


@intrinsic
def write_f32(typing, address, index, value):
    def generate(context, builder, signature, args):
        address, index, value = args
        builder.store(value, lanes.pointer(builder, address, index, 4, lanes.F32))
        return context.get_dummy_value()

    return types.none(i64, i64, types.float32), generate


@intrinsic
def unpacked(typing, args, count):
    """The first `count` (a literal) of a kernel's arguments, as a tuple of int64."""
    if not isinstance(count, types.IntegerLiteral):
        raise errors.RequireLiteralValue("count must be a literal")
    numbers = types.UniTuple(i64, count.literal_value)

    def generate(context, builder, signature, args):
        kind = context.get_value_type(numbers)
        return builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=8)

    return numbers(i64, count), generate


@intrinsic
def float_of(typing, number):
    """The float32 among a kernel's arguments (see team.float_bits)."""

    def generate(context, builder, signature, args):
        return builder.bitcast(builder.trunc(args[0], I32), lanes.F32)

    return types.float32(i64), generate


@intrinsic
def _pointer(typing, item, address):
    kind = types.CPointer(item)

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[1], context.get_value_type(kind))

    return kind(item, i64), generate


@inlined
def array_at(item, address, size):
    """The memory at `address` as an array of items of this numpy scalar's type."""
    return carray(_pointer(item, address), (size,))


@intrinsic
def borrow(typing, num_bytes):
    """Address of a new buffer, to be aligned by the caller and ended with `give_back`.

    An array would not do: numba frees it after its last use as an array, while its address is
    still in use.
    """

    def generate(context, builder, signature, args):
        return builder.ptrtoint(context.nrt.allocate(builder, args[0]), I64)

    return i64(i64), generate


@intrinsic
def give_back(typing, address):
    def generate(context, builder, signature, args):
        context.nrt.free(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.none(i64), generate


@intrinsic
def copy_bytes(typing, destination, source, num_bytes):
    """memcpy; the two spans must not overlap."""

    def generate(context, builder, signature, args):
        kind = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(a, kind) for a in args[:2])
        lanes.copy_bytes(builder, target, source, args[2])
        return context.get_dummy_value()

    return types.none(i64, i64, i64), generate


def _prefetch(locality):
    def generate(context, builder, signature, args):
        lanes.fetch(builder, args[0], locality)
        return context.get_dummy_value()

    return types.none(i64), generate


@intrinsic
def prefetch(typing, address):
    """Ask for the cache line at `address`; harmless wherever it points."""
    return _prefetch(3)


@intrinsic
def prefetch_far(typing, address):
    """The same into the L2 cache only."""
    return _prefetch(2)
