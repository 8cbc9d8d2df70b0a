"""Offsets past 2^31 elements: an 8B model's pool passes them at block 2,048.

The pool is 4 GiB of memory that is asked for and never touched but in a few pages.
"""

from collections.abc import Callable, Iterator

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu import ops

SHAPE = (2**15 + 3, 8, 2, 2, 16, 128)  # blocks of 2^16 elements; block 2^15 begins at 2^31
allocate = torch.empty  # before a fixture fills new memory with NaN


@pytest.fixture
def pool(device: torch.device) -> Iterator[torch.Tensor]:
    if torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GiB of free GPU memory")
    yield allocate(SHAPE, dtype=torch.float16, device=device)


def test_blocks_past_2_to_the_31_elements_are_written_and_read(
    pool: torch.Tensor,
    device: torch.device,
    assert_close: Callable[[torch.Tensor, torch.Tensor], None],
) -> None:
    blocks = [2**15 + 2, 3, 2**15]
    kv_layer = pool[:, 5]
    length = 37
    slots = torch.tensor([blocks[p // 16] * 16 + p % 16 for p in range(length)])
    key, value = torch.randn(2, length, 2, 128).to(device, torch.float16)
    angles = torch.zeros(length, 64)  # of cosine 1: nothing turns
    ops.rotary_store_kv(
        key, key, value, angles.cos().to(device), angles.to(device), kv_layer, slots.to(device)
    )
    block_id, offset = int(slots[0]) // 16, int(slots[0]) % 16
    assert torch.equal(kv_layer[block_id, 0, :, offset], key[0])

    # The reference sees the same three blocks in a small pool.
    small = torch.zeros(3, 2, 2, 16, 128, dtype=torch.float64)
    reference.store_kv(key.cpu().double(), value.cpu().double(), small, torch.arange(length))
    lengths = torch.tensor([length], dtype=torch.int32)
    small_table = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    table = torch.tensor([blocks], dtype=torch.int32, device=device)
    query = torch.randn(3, 4, 128).to(device, torch.float16)
    wide = query.cpu().double()
    assert_close(
        ops.decode_attention(query[:1], kv_layer, table, lengths.to(device), 0.1),
        reference.decode_attention(wide[:1], small, small_table, lengths, 0.1),
    )
    starts = torch.tensor([0, 3], dtype=torch.int32)
    assert_close(
        ops.prefill_attention(query, kv_layer, table, lengths.to(device), starts.to(device), 0.1),
        reference.prefill_attention(wide, small, small_table, lengths, starts, 0.1),
    )
