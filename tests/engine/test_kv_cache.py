"""Blocks as bytes."""

import threading

import pytest
import torch

from octavo.engine.kv_cache import KVCache, KVLayout

CPU = torch.device("cpu")


def make_cache(dtype: str = "bfloat16", num_blocks: int = 4) -> KVCache:
    layout = KVLayout(
        dtype=dtype,
        num_layers=3,
        num_kv_heads=2,
        head_dim=8,
        block_size=16,
        model_fingerprint="f" * 32,
    )
    return KVCache(layout, num_blocks, CPU)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_a_block_is_one_contiguous_span(dtype: str, size: int) -> None:
    cache = make_cache(dtype)
    assert cache.block_bytes == 3 * 2 * 2 * 16 * 8 * size
    assert cache.kv.shape == (4, 3, 2, 2, 16, 8)
    assert cache.kv[1].is_contiguous()
    assert cache.read_block(1).nbytes == cache.block_bytes


def test_reading_on_the_cpu_copies_nothing() -> None:
    cache = make_cache()
    view = cache.read_block(2)
    assert bytes(view) == bytes(cache.block_bytes)
    cache.kv[2].fill_(1.0)
    assert bytes(view) == bytes(
        torch.ones(3, 2, 2, 16, 8, dtype=torch.bfloat16).view(torch.uint8).numpy()
    )


def test_bytes_written_from_another_thread_are_the_block_and_touch_no_other() -> None:
    source, target = make_cache(), make_cache()
    source.kv[3].normal_(generator=torch.Generator().manual_seed(0))
    thread = threading.Thread(target=target.write_block, args=(1, source.read_block(3)))
    thread.start()
    thread.join()
    assert torch.equal(target.kv[1], source.kv[3])
    assert not target.kv[[0, 2, 3]].any()


def test_a_block_of_the_wrong_size_is_refused() -> None:
    cache = make_cache()
    with pytest.raises(ValueError, match=f"a block has {cache.block_bytes} bytes, got 7"):
        cache.write_block(0, b"x" * 7)


def test_the_tail_is_zeroed_in_every_layer_and_head() -> None:
    cache = make_cache()
    cache.kv.fill_(1.0)
    cache.zero_tail(2, 5)
    assert not cache.kv[2, :, :, :, 5:].any()
    assert cache.kv[2, :, :, :, :5].all()
    assert cache.kv[[0, 1, 3]].all()
