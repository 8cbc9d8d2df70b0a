"""Words that several threads, or processes, read and write at once; and calls by address.

All accesses are sequentially consistent. Words are int32 or int64 in memory, int64 in numba code.
"""

import platform

from llvmlite import ir
from numba.core import cgutils, types

from octavo.kernels.cpu import lanes
from octavo.kernels.cpu.jit import intrinsic
from octavo.kernels.cpu.lanes import I32, I64

i64 = types.int64
VOID = ir.VoidType()
BYTES = ir.IntType(8).as_pointer()
ORDER = "seq_cst"


@intrinsic
def load_word(typing, address):
    """The int32 at `address`."""

    def generate(context, builder, signature, args):
        source = lanes.pointer(builder, args[0], I64(0), 4, I32)
        return builder.sext(builder.load_atomic(source, ORDER, 4), I64)

    return i64(i64), generate


@intrinsic
def store_word(typing, address, value):
    """The int32 at `address` becomes value."""

    def generate(context, builder, signature, args):
        target = lanes.pointer(builder, args[0], I64(0), 4, I32)
        builder.store_atomic(builder.trunc(args[1], I32), target, ORDER, 4)
        return context.get_dummy_value()

    return types.none(i64, i64), generate


@intrinsic
def load_number(typing, address):
    """The int64 at `address`."""

    def generate(context, builder, signature, args):
        source = lanes.pointer(builder, args[0], I64(0), 8, I64)
        return builder.load_atomic(source, ORDER, 8)

    return i64(i64), generate


@intrinsic
def store_number(typing, address, value):
    """The int64 at `address` becomes value."""

    def generate(context, builder, signature, args):
        target = lanes.pointer(builder, args[0], I64(0), 8, I64)
        builder.store_atomic(args[1], target, ORDER, 8)
        return context.get_dummy_value()

    return types.none(i64, i64), generate


@intrinsic
def add_number(typing, address, value):
    """value is added to the int64 at `address`; returns what was there before."""

    def generate(context, builder, signature, args):
        target = lanes.pointer(builder, args[0], I64(0), 8, I64)
        return builder.atomic_rmw("add", target, args[1], ORDER)

    return i64(i64, i64), generate


@intrinsic
def replace_number(typing, address, expected, value):
    """The int64 at `address` becomes value if it is `expected`; returns whether it was."""

    def generate(context, builder, signature, args):
        target = lanes.pointer(builder, args[0], I64(0), 8, I64)
        result = builder.cmpxchg(target, args[1], args[2], ORDER)
        return builder.extract_value(result, 1)

    return types.boolean(i64, i64, i64), generate


@intrinsic
def replace_word(typing, address, expected, value):
    """The int32 at `address` becomes value if it is `expected`; returns whether it was."""

    def generate(context, builder, signature, args):
        target = lanes.pointer(builder, args[0], I64(0), 4, I32)
        before, after = (builder.trunc(arg, I32) for arg in args[1:])
        return builder.extract_value(builder.cmpxchg(target, before, after, ORDER), 1)

    return types.boolean(i64, i64, i64), generate


@intrinsic
def pause(typing):
    """Tell the core that this thread spins."""

    def generate(context, builder, signature, args):
        machine = platform.machine()
        if machine in ("x86_64", "AMD64"):
            lanes.call(builder, "llvm.x86.sse2.pause", VOID)
        elif machine in ("aarch64", "arm64"):
            lanes.call(builder, "llvm.aarch64.hint", VOID, I32(1))
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def let_others_run(typing):
    """sched_yield."""

    def generate(context, builder, signature, args):
        lanes.call(builder, "sched_yield", I32)
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def sleep_us(typing, microseconds):
    """usleep: others run meanwhile."""

    def generate(context, builder, signature, args):
        lanes.call(builder, "usleep", I32, builder.trunc(args[0], I32))
        return context.get_dummy_value()

    return types.none(i64), generate


def _transfer(name):
    """read or write: (descriptor, address, num_bytes) to the number of bytes, -1 on an error."""

    def generate(context, builder, signature, args):
        descriptor, address, num_bytes = args
        operands = builder.trunc(descriptor, I32), builder.inttoptr(address, BYTES), num_bytes
        return lanes.call(builder, name, I64, *operands)

    return i64(i64, i64, i64), generate


@intrinsic
def read_file(typing, descriptor, address, num_bytes):
    return _transfer("read")


@intrinsic
def write_file(typing, descriptor, address, num_bytes):
    return _transfer("write")


@intrinsic
def call_kernel(typing, kernel, args, first, last):
    """Call the kernel (see team.py) whose code is at an address."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(VOID, [I64, I64, I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.none(i64, i64, i64, i64), generate


@intrinsic
def on_stack(typing, numbers):
    """Address of a tuple of int64, valid until the calling function returns."""

    def generate(context, builder, signature, args):
        return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), I64)

    return i64(types.UniTuple(i64, len(numbers))), generate
