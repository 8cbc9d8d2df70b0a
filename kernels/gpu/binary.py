"""Compile a launch for a GPU that need not be present, and read what its machine code uses.

    Launch --ASTSource--> triton.compile(target) --> NVIDIA: log of the ptxas that triton ships, PTX
                                                 --> AMD: metadata at the end of the assembly

The specialisation (which arguments are 1, which are multiples of 16) comes from the launch's own
arguments through Triton's own binder, so the code is the code that such a launch would run.
"""

import contextlib
import io
import re
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from octavo.kernels.gpu.launch import Launch
from octavo.kernels.gpu.tiles import Arch

TARGETS: dict[Arch, GPUTarget] = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# What one program may use; tiles.py keeps sm_80 below what its smaller relatives have, too.
MAX_SHARED_BYTES: dict[Arch, int] = {
    "sm_80": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "gfx942": 64 * 1024,
}
REGISTERS_PER_CORE = 65_536
RESERVED_SHARED_BYTES = 1024  # the driver's, of every program
WARPS_PER_CORE: dict[Arch, int] = {"sm_80": 48, "sm_89": 48, "sm_90": 64, "gfx942": 32}


@dataclass(frozen=True, slots=True)
class Binary:
    """Resources and instruction counts of one compiled kernel."""

    arch: Arch
    num_registers: int  # a thread's; vector registers (with accumulators) on AMD
    num_scalar_registers: int  # AMD only
    num_spilled: int  # bytes on NVIDIA, registers on AMD
    shared_bytes: int
    num_mma: int
    num_wgmma: int  # of num_mma: Hopper's, a whole warp group's product
    num_async_copies: int
    num_warps: int

    @property
    def programs_per_core(self) -> int:
        """How many run on one core at once, by registers, shared memory and threads; NVIDIA."""
        warp_registers = -(-self.num_registers // 8) * 8 * 32
        return min(
            REGISTERS_PER_CORE // (warp_registers * self.num_warps),
            (MAX_SHARED_BYTES[self.arch] + RESERVED_SHARED_BYTES)
            // (self.shared_bytes + RESERVED_SHARED_BYTES),
            WARPS_PER_CORE[self.arch] // self.num_warps,
        )

    @property
    def problems(self) -> list[str]:
        """Why this binary must not ship; empty when it may."""
        limit = MAX_SHARED_BYTES[self.arch]
        found = []
        if self.num_spilled > 0:
            found.append(f"spills {self.num_spilled}")
        if self.shared_bytes > limit:
            found.append(f"shared memory {self.shared_bytes} > {limit}")
        return found


class UnreadableBinary(RuntimeError):
    """The compiler's report does not hold a number that it should."""


def _number(pattern: str, text: str) -> int:
    """The sum of the pattern's numbers in its only line of text."""
    match = re.search(pattern, text)
    if match is None:
        raise UnreadableBinary(f"no {pattern!r} in the compiler's report")
    return sum(int(group) for group in match.groups())


def _compile(launch: Launch, target: GPUTarget) -> tuple[Any, str]:
    """The compiled kernel, and what the assembler printed."""
    kernel, backend = launch.kernel, make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = binder(
        **launch.arguments, **launch.constants, **launch.options
    )
    # Each entry is (type, what is known of the value); a value of 1 is a constant, too.
    signature, constants, attributes = {}, {}, {}
    for position, (name, (kind, known)) in enumerate(zip(bound, specialization, strict=True)):
        signature[name] = kind
        if kind == "constexpr":
            constants[(position,)] = bound[name]
        elif known:
            attributes[(position,)] = backend.parse_attr(known)
    source = ASTSource(kernel, signature, constants, attributes)
    knobs = triton.knobs
    with knobs.nvidia.scope(), knobs.compilation.scope(), io.StringIO() as log:
        # The log exists only while the assembler runs, so a cached binary would have none.
        knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile = True, True
        with contextlib.redirect_stdout(log):
            compiled = triton.compile(source, target=target, options=options)
        return compiled, log.getvalue()


def compile_for(launch: Launch, arch: Arch) -> Binary:
    """Compile the launch's kernel for arch; no device is needed."""
    compiled, log = _compile(launch, TARGETS[arch])
    if arch == "gfx942":
        return _read_amd(arch, compiled.asm["amdgcn"], compiled.metadata)
    ptx = compiled.asm["ptx"]
    return Binary(
        arch=arch,
        num_registers=_number(r"Used (\d+) registers", log),
        num_scalar_registers=0,
        num_spilled=_number(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log),
        shared_bytes=compiled.metadata.shared,
        num_mma=_count(r"(?:@\S+ )?(?:wgmma\.mma_async|mma\.sync)", ptx),
        num_wgmma=_count(r"(?:@\S+ )?wgmma\.mma_async", ptx),
        num_async_copies=_count(r"(?:@\S+ )?cp\.async\.c[ag]", ptx),
        num_warps=launch.num_warps,
    )


def _count(instruction: str, assembly: str) -> int:
    """Lines that begin so."""
    return len(re.findall(rf"^\s*{instruction}", assembly, re.M))


def _read_amd(arch: Arch, assembly: str, metadata: Any) -> Binary:
    """Shared memory is asked for at launch; the assembly's own count is what comes on top."""
    return Binary(
        arch=arch,
        num_registers=_number(r"\.vgpr_count:\s*(\d+)", assembly),
        num_scalar_registers=_number(r"\.sgpr_count:\s*(\d+)", assembly),
        num_spilled=_number(r"\.sgpr_spill_count:\s*(\d+)", assembly)
        + _number(r"\.vgpr_spill_count:\s*(\d+)", assembly),
        shared_bytes=metadata.shared + _number(r"\.group_segment_fixed_size:\s*(\d+)", assembly),
        num_mma=_count("v_mfma", assembly),
        num_wgmma=0,
        num_async_copies=_count(r"(?:buffer|global)_load\S* .*\blds\b", assembly),
        num_warps=metadata.num_warps,
    )
