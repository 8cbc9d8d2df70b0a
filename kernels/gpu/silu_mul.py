"""silu(gate) * up over a fused gate-up projection: one pass, [T, 2N] in, [T, N] out."""

import torch
import triton
import triton.language as tl

from octavo.kernels.gpu.launch import Launch

TILE_ELEMENTS = 2048


@triton.jit(do_not_specialize=["num_columns"])
def _silu_mul_kernel(
    out_ptr,  # [T, N]
    gate_up_ptr,  # [T, 2N], gate first
    gate_up_stride,
    up_offset,  # N, kept apart from num_columns for its divisibility
    num_columns,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < num_columns
    gate_ptrs = gate_up_ptr + row * gate_up_stride + columns
    gate = tl.load(gate_ptrs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptrs + up_offset, mask=mask, other=0.0).to(tl.float32)
    decay = tl.exp(-tl.abs(gate))  # never overflows: sigmoid is 1 / (1 + decay) or 1 minus that
    sigmoid = tl.where(gate >= 0, 1.0, decay) / (1.0 + decay)
    # Rounded to the tensor's dtype between the two, as the two-step reference is.
    silu = (gate * sigmoid).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * up_offset + columns, silu * up, mask=mask)


def plan_silu_mul(out: torch.Tensor, gate_up: torch.Tensor) -> Launch:
    """The launch of one call."""
    num_tokens, num_columns = out.shape
    block = min(TILE_ELEMENTS, triton.next_power_of_2(num_columns))
    return Launch(
        kernel=_silu_mul_kernel,
        grid=(num_tokens, triton.cdiv(num_columns, block)),
        arguments={
            "out_ptr": out,
            "gate_up_ptr": gate_up,
            "gate_up_stride": gate_up.stride(0),
            "up_offset": num_columns,
            "num_columns": num_columns,
        },
        constants={"BLOCK": block},
    )


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See reference.silu_mul."""
    num_tokens, num_columns = gate_up.shape
    assert num_columns % 2 == 0 and gate_up.stride(1) == 1, (gate_up.shape, gate_up.stride())
    out = torch.empty((num_tokens, num_columns // 2), dtype=gate_up.dtype, device=gate_up.device)
    plan_silu_mul(out, gate_up).run()
    return out
