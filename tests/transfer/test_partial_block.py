"""What lies behind a prompt's last token in its last block never leaves the worker."""

import numpy as np
import torch

from octavo.engine.kv_cache import KVCache, KVLayout
from octavo.transfer.sender import zero_unused_slots

LAYOUT = KVLayout("float32", 3, 2, 8, 16, "model")


def test_unused_slots_are_zeroed_in_the_copy_only() -> None:
    cache = KVCache(LAYOUT, 2, torch.device("cpu"))
    cache.kv.normal_(generator=torch.Generator().manual_seed(0))
    before = cache.kv.clone()
    copy = bytearray(cache.read_block(1))
    zero_unused_slots(copy, LAYOUT, num_used_slots=5)
    seen = torch.from_numpy(np.frombuffer(copy, np.float32).copy()).view(LAYOUT.block_shape)
    assert torch.equal(seen[..., :5, :], before[1][..., :5, :])
    assert not seen[..., 5:, :].any()
    assert torch.equal(cache.kv, before)
