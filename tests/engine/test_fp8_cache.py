"""An fp8 cache: half the bytes, the same hand-off, and weights that bring KV into its range."""

from pathlib import Path

import pytest
import torch

from checkpoints import FAMILIES, tiny_llama
from checkpoints.paged import PagedPool, PagedSequence, paged_logits, reference_kernels
from engine.tiny import make_sequence, run, tiny_engine
from octavo.engine.engine import Engine
from octavo.engine.models import load_model
from octavo.engine.sequence import Status
from octavo.kernels.select import UnsupportedKvDtype, check_kv_dtype
from octavo.sampling_params import SamplingParams

CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn
PROMPT = [5, 9, 200, 31, 7, 7, 120, 3, 88, 41, 60, 2, 9, 17, 230, 12, 77, 301, 4]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_scaled_weights_change_no_bit_of_the_logits(family: str, tmp_path: Path) -> None:
    path = FAMILIES[family](tmp_path / "model")
    logits = []
    for kv_dtype in (torch.float32, FP8):
        kernels = reference_kernels()
        model = load_model(
            path, dtype=torch.float32, device=CPU, kernels=kernels, kv_dtype=kv_dtype
        )
        logits.append(paged_logits(model, PROMPT, (8, 1)))  # over a float32 cache both times
    assert torch.equal(*logits)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_head_uses_the_range_of_fp8(family: str, tmp_path: Path) -> None:
    path = FAMILIES[family](tmp_path / "model")
    model = load_model(
        path, dtype=torch.float32, device=CPU, kernels=reference_kernels(), kv_dtype=FP8
    )
    pool = PagedPool(model)
    logits = pool.step([(PagedSequence(), PROMPT)])
    # The greatest number of each layer's and head's keys, and of its values.
    greatest = pool.kv.nan_to_num().abs().amax(dim=(0, 4, 5))
    assert greatest.min() > 16 and greatest.max() < torch.finfo(FP8).max
    rounded = paged_logits(model, PROMPT, (8, 1), dtype=FP8)
    assert (rounded - logits).norm() / logits.norm() < 0.15  # three bits, in a tiny random model


def decode_elsewhere(first: Engine, second: Engine, prompt: list[int]) -> list[int]:
    """Prefill on one engine, its blocks as bytes to another, the rest there."""
    sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    leased = make_sequence("leased", prompt, sampling, is_leased=True)
    first.scheduler.add(leased)
    first.step()
    pulled = make_sequence("pulled", prompt, sampling, is_pulled=True)
    second.scheduler.add(pulled)
    second.step()
    assert pulled.status is Status.FILLING
    num_blocks = -(-len(prompt) // 16)
    for source, target in zip(leased.block_ids, pulled.block_ids[:num_blocks], strict=False):
        second.kv_cache.write_block(target, first.kv_cache.read_block(source))
    second.scheduler.join("pulled", leased.output_token_ids[0])
    second.scheduler.end_pull("pulled")
    while second.scheduler.has_work:
        second.step()
    first.scheduler.release("leased")
    return pulled.output_token_ids


def test_blocks_are_a_quarter_of_float32_and_move_as_bytes(llama: Path) -> None:
    engines = [tiny_engine(llama, kv_dtype="fp8") for _ in range(2)]
    layout = engines[0].layout
    assert layout.dtype == "float8_e4m3fn"
    assert 4 * layout.block_bytes == tiny_engine(llama).layout.block_bytes
    sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    expected = run(tiny_engine(llama, kv_dtype="fp8"), [make_sequence("alone", PROMPT, sampling)])
    assert decode_elsewhere(engines[0], engines[1], PROMPT) == expected[0]


def test_a_tail_of_fp8_is_zeroed(llama: Path) -> None:
    cache = tiny_engine(llama, kv_dtype="fp8").kv_cache
    cache.kv.view(torch.uint8).fill_(7)
    cache.zero_tail(2, 5)
    assert not cache.kv[2, :, :, :, 5:].view(torch.uint8).any()
    assert cache.kv[2, :, :, :, :5].view(torch.uint8).all()


def test_a_device_without_such_kernels_is_refused_by_name(llama: Path) -> None:
    with pytest.raises(UnsupportedKvDtype, match="NVIDIA GPU, not cpu"):
        check_kv_dtype(CPU, FP8)
    check_kv_dtype(CPU, torch.bfloat16)
