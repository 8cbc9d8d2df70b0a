"""One kernel launch as data: what runs, on which grid, with which arguments.

    operation --plans--> [Launch, ...] --run()------------> device (or Triton's interpreter)
                                       \\--compile_table--> machine code for a GPU that is absent

Both readers see the same arguments, so what the compile table checks is what a launcher starts.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton

# Decided when a kernel is decorated: with TRITON_INTERPRET=1 set before this import, kernels run
# in Triton's interpreter on CPU tensors.
INTERPRETED: bool = triton.knobs.runtime.interpret


@dataclass(frozen=True, slots=True)
class Launch:
    """A jit function with everything it is started with."""

    kernel: Any  # triton's JITFunction, which has no types
    grid: tuple[int, ...]
    arguments: dict[str, torch.Tensor | int | float]
    constants: dict[str, int | bool]  # tl.constexpr parameters
    num_warps: int = 4
    num_stages: int = 2

    @property
    def options(self) -> dict[str, int | bool]:
        """Triton's compile options; fusing a multiply and an add is asked for by name, because
        Triton's own default is about to change."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": True,
        }

    def run(self) -> None:
        """Start the kernel on the current device's current stream; an empty grid does nothing."""
        if 0 in self.grid:
            return
        self.kernel[self.grid](**self.arguments, **self.constants, **self.options)


def needs_upcast(dtype: torch.dtype) -> bool:
    """Whether kernels must widen dtype right after a load: Triton's interpreter keeps bfloat16 as
    integers and computes with those, silently wrong."""
    return INTERPRETED and dtype == torch.bfloat16
