"""What is run: each kernel with its inputs, its exact result, and the work that it cannot avoid."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from octavo.kernels import reference
from octavo.kernels.gpu import ops
from octavo.kernels.gpu.kv_tile import FP8
from octavo.kernels.gpu.paged_attention import PagedAttention
from octavo.kernels.prefix_groups import PrefixGroups

BLOCK_SIZE = 16
Run = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one shape."""

    kernel: str
    shape: str
    run: Run
    exact: Run  # float64
    num_bytes: int  # read and written at least
    num_flop: int
    call: PagedAttention | None = None  # of attention
    query_start: torch.Tensor | None = None  # of prefill
    peers: dict[str, Run] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model's heads and the lengths to run them at."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    decodes: tuple[tuple[int, int], ...]  # (sequences, tokens in the cache of each)
    prefills: tuple[tuple[int, int, int], ...]  # (sequences, new tokens, cached tokens of each)
    groups: tuple[tuple[int, int, int], ...]  # (sequences, shared tokens, own tokens)
    num_rows: tuple[int, ...]  # of pointwise kernels

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_dim


FULL = Sizes(
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14_336,
    decodes=((1, 4096), (1, 131_072), (16, 4096), (64, 2048), (256, 1024)),
    prefills=((1, 4096, 0), (4, 1024, 2048), (1, 512, 16_384)),
    groups=((32, 2048, 64), (128, 1024, 128)),
    num_rows=(1, 64, 8192),
)
# For the interpreter on a CPU.
TINY = Sizes(
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=96,
    decodes=((2, 40),),
    prefills=((2, 20, 16),),
    groups=((3, 32, 5),),
    num_rows=(3,),
)


def all_cases(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """One after the other, so that only one case's memory is held."""
    kv_dtypes = [dtype]
    if device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9):
        kv_dtypes.append(FP8)
    for kv_dtype in kv_dtypes:
        for num_seqs, num_tokens in sizes.decodes:
            yield decode_case(paged(sizes, [num_tokens] * num_seqs, dtype, kv_dtype, device))
        for num_seqs, num_new, num_cached in sizes.prefills:
            lens = [num_new + num_cached] * num_seqs
            yield prefill_case(paged(sizes, lens, dtype, kv_dtype, device), num_new)
        for num_seqs, num_shared, num_own in sizes.groups:
            lens = [num_shared + num_own] * num_seqs
            yield grouped_case(paged(sizes, lens, dtype, kv_dtype, device), num_shared)
        for num_rows in sizes.num_rows:
            yield rotary_store_case(sizes, num_rows, dtype, kv_dtype, device)
    for num_rows in sizes.num_rows:
        yield norm_case(sizes, num_rows, dtype, device)
        yield silu_case(sizes, num_rows, dtype, device)


def paged(
    sizes: Sizes,
    seq_lens: list[int],
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
) -> PagedAttention:
    """One decode row a sequence over random KV in shuffled blocks."""
    width = -(-max(seq_lens) // BLOCK_SIZE)
    num_blocks = len(seq_lens) * width
    shape = (num_blocks, 2, sizes.num_kv_heads, BLOCK_SIZE, sizes.head_dim)
    tables = torch.randperm(num_blocks, device=device).int().view(len(seq_lens), width)
    return PagedAttention(
        query=torch.randn(len(seq_lens), sizes.num_heads, sizes.head_dim, device=device).to(dtype),
        kv_layer=torch.randn(shape, device=device).to(kv_dtype),
        block_tables=tables,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
        scale=sizes.head_dim**-0.5,
    )


def _name(call: PagedAttention) -> str:
    return " over fp8" if call.kv_layer.dtype == FP8 else ""


def _kv_bytes(call: PagedAttention, num_tokens: int) -> int:
    row = call.num_kv_heads * call.query.shape[2] * call.kv_layer.element_size()
    return 2 * num_tokens * row


def _wide(call: PagedAttention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return call.query.double(), call.kv_layer, call.block_tables, call.seq_lens


def decode_case(call: PagedAttention) -> Case:
    lens = call.seq_lens.tolist()
    num_seqs, num_heads, head_dim = call.query.shape
    arguments = (call.query, call.kv_layer, call.block_tables, call.seq_lens, call.scale)
    return Case(
        kernel="decode_attention" + _name(call),
        shape=f"{num_seqs} x {lens[0]}",
        run=lambda: ops.decode_attention(*arguments),
        exact=lambda: reference.decode_attention(*_wide(call), call.scale),
        num_bytes=_kv_bytes(call, sum(lens)),
        num_flop=4 * sum(lens) * num_heads * head_dim,
        call=call,
    )


def prefill_case(call: PagedAttention, num_new: int) -> Case:
    lens = call.seq_lens.tolist()
    num_seqs, num_heads, head_dim = call.query.shape
    shape, device = (num_seqs * num_new, num_heads, head_dim), call.query.device
    call = replace(call, query=torch.randn(shape, device=device).to(call.query.dtype))
    starts = torch.arange(num_seqs + 1, device=device, dtype=torch.int32) * num_new
    arguments = (call.query, call.kv_layer, call.block_tables, call.seq_lens, starts, call.scale)
    num_seen = num_seqs * (num_new * (lens[0] - num_new) + num_new * (num_new + 1) // 2)
    return Case(
        kernel="prefill_attention" + _name(call),
        shape=f"{num_seqs} x {num_new} after {lens[0] - num_new}",
        run=lambda: ops.prefill_attention(*arguments),
        exact=lambda: reference.prefill_attention(*_wide(call), starts, call.scale),
        num_bytes=_kv_bytes(call, sum(lens)) + 2 * call.query.nbytes,
        num_flop=4 * num_seen * num_heads * head_dim,
        call=call,
        query_start=starts,
    )


def grouped_case(call: PagedAttention, num_shared: int) -> Case:
    """All sequences begin with the first one's blocks."""
    num_blocks, num_seqs = num_shared // BLOCK_SIZE, len(call.query)
    call.block_tables[:, :num_blocks] = call.block_tables[0, :num_blocks].clone()
    device = call.query.device

    def tensor(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    groups = PrefixGroups(
        members=tensor(*range(num_seqs)),
        group_start=tensor(0, num_seqs),
        blocks=tensor(0, num_blocks)[None],
        levels=tensor(0),
        shared_lens=tensor(*[num_shared] * num_seqs),
        num_levels=1,
        max_members=num_seqs,
        max_blocks=num_blocks,
    )
    own = int(call.seq_lens[0]) - num_shared
    arguments = (call.query, call.kv_layer, call.block_tables, call.seq_lens)
    work = decode_case(call)
    return replace(
        work,
        kernel="grouped_decode_attention" + _name(call),
        shape=f"{num_seqs} x ({num_shared} shared + {own})",
        run=lambda: ops.grouped_decode_attention(*arguments, groups, call.scale),
        num_bytes=_kv_bytes(call, num_shared + num_seqs * own),
        peers={"octavo, not grouped": work.run},
        call=None,
    )


def rotary_store_case(
    sizes: Sizes, num_rows: int, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device
) -> Case:
    """Reports the stored keys and values; a run may be repeated, so queries are not looked at."""
    heads = (sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads)
    fused = torch.randn(num_rows, sum(heads), sizes.head_dim, device=device).to(dtype)
    query, key, value = fused.split(heads, dim=1)
    angles = torch.rand(num_rows, sizes.head_dim // 2, device=device)
    cos, sin = angles.cos(), angles.sin()
    num_blocks = -(-num_rows // BLOCK_SIZE)
    shape = (num_blocks, 2, sizes.num_kv_heads, BLOCK_SIZE, sizes.head_dim)
    kv_layer = torch.zeros(shape, device=device).to(kv_dtype)
    slots = torch.randperm(num_blocks * BLOCK_SIZE, device=device)[:num_rows]
    norm = torch.ones(sizes.head_dim, dtype=dtype, device=device)

    def run() -> torch.Tensor:
        ops.rotary_store_kv(query, key, value, cos, sin, kv_layer, slots, (norm, norm), 1e-6)
        return kv_layer

    def exact() -> torch.Tensor:
        wide = kv_layer.double().zero_()
        norms = (norm.double(), norm.double())
        reference.rotary_store_kv(
            query.double(), key.double(), value.double(), cos, sin, wide, slots, norms, 1e-6
        )
        return wide

    item = torch.empty(0, dtype=kv_dtype).element_size()
    stored = 2 * num_rows * sizes.num_kv_heads * sizes.head_dim * item
    return Case(
        kernel="rotary_store_kv" + (" into fp8" if kv_dtype == FP8 else ""),
        shape=f"{num_rows} rows",
        run=run,
        exact=exact,
        num_bytes=fused.nbytes + query.nbytes + stored,
        num_flop=0,
    )


def norm_case(sizes: Sizes, num_rows: int, dtype: torch.dtype, device: torch.device) -> Case:
    x = torch.randn(num_rows, sizes.hidden_size, device=device).to(dtype)
    weight = torch.randn(sizes.hidden_size, device=device).to(dtype)
    zeros = torch.zeros_like(x)
    return Case(
        kernel="add_rms_norm",
        shape=f"{num_rows} x {sizes.hidden_size}",
        # The sum takes the place of its second argument; x + 0 is the same every time.
        run=lambda: ops.add_rms_norm(zeros, x, weight, 1e-6)[0],
        exact=lambda: reference.rms_norm(x.double(), weight.double(), 1e-6),
        num_bytes=4 * x.nbytes,
        num_flop=0,
    )


def silu_case(sizes: Sizes, num_rows: int, dtype: torch.dtype, device: torch.device) -> Case:
    gate_up = torch.randn(num_rows, 2 * sizes.intermediate_size, device=device).to(dtype)
    return Case(
        kernel="silu_mul",
        shape=f"{num_rows} x {sizes.intermediate_size}",
        run=lambda: ops.silu_mul(gate_up),
        exact=lambda: reference.silu_mul(gate_up.double()),
        num_bytes=gate_up.nbytes * 3 // 2,
        num_flop=0,
    )


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Of the worst row; 0 is perfect."""
    difference = (actual.double() - exact).norm(dim=-1)
    error = (difference / exact.norm(dim=-1).clamp(min=1e-3)).max().item()
    return math.inf if math.isnan(error) else error
