"""RMS norm over the last dimension, alone or with the residual added first.

    rows of x [A, B, N] (any strides but the last: a slice of a fused projection is not copied)
      tile [ROWS, N]: whole rows, as many as make about 2,048 elements (a head's norm has short
      rows, a model's has one long one)

Sums in float32; rounded to x's dtype before the weight, as `transformers` does.
"""

import torch
import triton
import triton.language as tl

from octavo.kernels.gpu.launch import Launch

TILE_ELEMENTS = 2048


@triton.jit(do_not_specialize=["num_rows", "num_inner"])
def _rms_norm_kernel(
    out_ptr,  # [num_rows, N]
    x_ptr,  # [num_rows / num_inner, num_inner, N]
    residual_ptr,  # [num_rows, N]; ADD: becomes x + residual
    weight_ptr,  # [N]
    num_rows,
    num_inner,
    stride_outer,
    stride_inner,
    eps,
    N: tl.constexpr,
    N_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    ADD: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, N_PAD)
    mask = (rows < num_rows)[:, None] & (columns < N)[None, :]
    starts = rows // num_inner * stride_outer + rows % num_inner * stride_inner
    places = rows[:, None] * N + columns[None, :]
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + starts[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if ADD:
        residual = tl.load(residual_ptr + places, mask=mask, other=0.0).to(tl.float32)
        rounded = (x + residual).to(dtype)
        tl.store(residual_ptr + places, rounded, mask=mask)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / N + eps)
    normed = (x * scale[:, None]).to(dtype).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, normed * weight[None, :], mask=mask)


def plan_rms_norm(
    out: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
) -> Launch:
    """The launch of one call over x [A, B, N]."""
    num_outer, num_inner, num_columns = x.shape
    num_rows = num_outer * num_inner
    columns_pad = triton.next_power_of_2(num_columns)
    rows = max(1, TILE_ELEMENTS // columns_pad)
    return Launch(
        kernel=_rms_norm_kernel,
        grid=(triton.cdiv(num_rows, rows),),
        arguments={
            "out_ptr": out,
            "x_ptr": x,
            "residual_ptr": out if residual is None else residual,
            "weight_ptr": weight,
            "num_rows": num_rows,
            "num_inner": num_inner,
            "stride_outer": x.stride(0),
            "stride_inner": x.stride(1),
            "eps": eps,
        },
        constants={
            "N": num_columns,
            "N_PAD": columns_pad,
            "ROWS": rows,
            "ADD": residual is not None,
        },
        num_warps=max(4, min(16, columns_pad // 512)),
    )


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """x [..., N] as [A, B, N], without a copy up to three dimensions."""
    assert x.stride(-1) == 1, x.stride()
    return x.unsqueeze(1) if x.dim() == 2 else x.reshape(-1, *x.shape[-2:])


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See reference.rms_norm."""
    assert weight.shape == x.shape[-1:] and weight.is_contiguous(), (weight.shape, x.shape)
    assert weight.dtype == x.dtype, (weight.dtype, x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    plan_rms_norm(out, _as_rows(x), None, weight, eps).run()
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.add_rms_norm; residual is overwritten with the sum and returned."""
    assert x.shape == residual.shape and residual.is_contiguous(), (x.shape, residual.shape)
    assert weight.shape == x.shape[-1:] and weight.is_contiguous(), (weight.shape, x.shape)
    assert weight.dtype == x.dtype == residual.dtype, (weight.dtype, x.dtype, residual.dtype)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    plan_rms_norm(out, _as_rows(x), residual, weight, eps).run()
    return out, residual
