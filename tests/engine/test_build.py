"""From a config to an engine: sizes, dtypes, and refusals by name."""

from pathlib import Path

import pytest
import torch

from checkpoints import tiny_llama
from checkpoints.paged import reference_kernels
from octavo.engine.build import build_engine, choose_dtype
from octavo.engine.config import EngineConfig
from octavo.engine.kv_cache import KVLayout
from octavo.engine.sizing import (
    NotEnoughMemory,
    default_cpu_bytes,
    free_cpu_bytes,
    num_blocks_within,
    profile_batch,
)

LAYOUT = KVLayout("bfloat16", 30, 3, 64, 16, "")  # SmolLM2-135M: 360 KiB a block


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "int8"),
        ("kv_dtype", "fp4"),
        ("device", "tpu"),
        ("quantization", "int3"),
        ("block_size", 12),
        ("block_size", 256),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.5),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("max_model_len", 0),
        ("kv_cache_bytes", 0),
        ("num_blocks", -1),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        EngineConfig(model="m", **{field: value})  # type: ignore[arg-type]


def build(llama: Path, **settings: object):  # type: ignore[no-untyped-def]
    config = EngineConfig(model=str(llama), device="cpu", **settings)  # type: ignore[arg-type]
    return build_engine(config, reference_kernels())


def test_the_pool_is_as_large_as_its_byte_budget(llama: Path) -> None:
    engine = build(llama, dtype="float32", kv_cache_bytes=1_000_000)
    assert engine.kv_cache.num_blocks == 1_000_000 // engine.layout.block_bytes
    assert engine.scheduler.pool.num_total == engine.kv_cache.num_blocks


def test_the_context_is_clamped_to_model_and_pool(llama: Path) -> None:
    assert build(llama, num_blocks=10).max_model_len == 160
    assert build(llama, num_blocks=1000).max_model_len == 4096
    assert build(llama, num_blocks=1000, max_model_len=100).max_model_len == 100


@pytest.mark.parametrize("block_size", [8, 32, 128])
def test_every_block_size_serves(llama: Path, block_size: int) -> None:
    engine = build(llama, num_blocks=4, block_size=block_size)
    assert engine.layout.block_size == engine.kv_cache.kv.shape[4] == block_size


def test_a_budget_without_room_for_one_block_is_refused_with_its_numbers() -> None:
    assert num_blocks_within(LAYOUT.block_bytes * 3 + 1, LAYOUT) == 3
    with pytest.raises(NotEnoughMemory, match="1000 bytes are left for KV, one block needs 368640"):
        num_blocks_within(1000, LAYOUT)


def test_the_default_budget_is_a_share_of_what_is_free() -> None:
    assert 0 < default_cpu_bytes() <= min(2 * 2**30, free_cpu_bytes() // 2)


def test_dtype_is_the_named_one_or_what_the_cpu_computes_in(llama: Path) -> None:
    config = build(llama, num_blocks=2).model_config
    cpu = torch.device("cpu")
    assert choose_dtype("float16", config, cpu) == "float16"
    assert choose_dtype("auto", config, cpu) in ("bfloat16", config.dtype)


def test_the_profile_batch_is_a_step_of_the_largest_size() -> None:
    batch = profile_batch(100, 8, 16, torch.device("cpu"))
    assert len(batch.token_ids) == 100
    assert batch.seq_lens.sum() == 100
    assert batch.positions.max() == batch.slot_mapping.max() == 15
    assert len(batch.logit_rows) == 8


def test_a_gpu_that_is_not_there_is_refused(llama: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="torch finds no GPU"):
        build_engine(EngineConfig(model=str(llama), device="cuda"))
