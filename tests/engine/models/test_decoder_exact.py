"""Logits equal those of `transformers` at every length, from an empty and from a filled cache."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from checkpoints import FAMILIES, reference_logits, tiny_llama, tiny_mistral, tiny_qwen2
from checkpoints.paged import PagedPool, PagedSequence, paged_logits, reference_kernels
from octavo.engine.models import DecoderModel, load_model
from octavo.kernels.select import Kernels, for_device

CPU = torch.device("cpu")
TOLERANCE = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}


@pytest.fixture(params=["reference", "cpu"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return reference_kernels() if request.param == "reference" else for_device(CPU)


def load(path: Path, kernels: Kernels, dtype: torch.dtype = torch.float32) -> DecoderModel:
    return load_model(path, dtype=dtype, device=CPU, kernels=kernels)


def prompt(length: int, vocab_size: int = 384) -> list[int]:
    return random.Random(length).choices(range(vocab_size), k=length)


def assert_exact(path: Path, kernels: Kernels, lengths: tuple[int, ...]) -> None:
    """Cold in one pass; hot behind a cached prefix and then token by token."""
    model = load(path, kernels)
    for length in lengths:
        token_ids = prompt(length)
        expected = reference_logits(path, token_ids)
        cold = paged_logits(model, token_ids)
        torch.testing.assert_close(cold, expected, atol=TOLERANCE, rtol=0)
        cached = (length // 2) // 16 * 16
        hot = paged_logits(model, token_ids, [cached, length - cached - 3, 1, 1])
        torch.testing.assert_close(hot, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_the_logits_of_transformers(
    tmp_path: Path, kernels: Kernels, family: str
) -> None:
    assert_exact(FAMILIES[family](tmp_path / family), kernels, (15, 16, 17, 100))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_head_is_tied_or_not_as_the_config_says(
    tmp_path: Path, kernels: Kernels, family: str, is_tied: bool
) -> None:
    path = FAMILIES[family](tmp_path / family, tie_word_embeddings=is_tied)
    assert_exact(path, kernels, (20,))


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {"attention_bias": True}),
        ("llama", {"num_key_value_heads": 4}),
        ("qwen2", {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 8}),
        ("mistral", {"head_dim": 32, "num_hidden_layers": 3}),
        ("llama", {"rope_theta": 500000.0}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    ],
)
def test_fields_that_change_the_computation_are_followed(
    tmp_path: Path, kernels: Kernels, family: str, overrides: dict[str, object]
) -> None:
    path = FAMILIES[family](tmp_path / family, **overrides)
    assert_exact(path, kernels, (40, 300))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: tiny_mistral(path, sliding_window=64),
        lambda path: tiny_mistral(path, sliding_window=None),
        # A window that no layer uses must not be applied.
        lambda path: tiny_llama(path, sliding_window=64),
        lambda path: tiny_qwen2(path, sliding_window=64),
        lambda path: tiny_qwen2(
            path,
            use_sliding_window=True,
            sliding_window=64,
            layer_types=["full_attention", "full_attention"],
        ),
        lambda path: tiny_qwen2(
            path, use_sliding_window=True, sliding_window=64, max_window_layers=1
        ),
        lambda path: FAMILIES["qwen3"](
            path,
            use_sliding_window=True,
            sliding_window=64,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ],
    ids=["all", "null", "llama", "unused", "all-full", "upper-layers", "by-layer-type"],
)
def test_a_sliding_window_holds_on_its_layers_and_no_others(
    tmp_path: Path, kernels: Kernels, make: Callable[[Path], Path]
) -> None:
    assert_exact(make(tmp_path / "model"), kernels, (63, 64, 65, 500))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 10000.0},
        {"rope_theta": 500000.0},
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
        {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
        {"rope_scaling": YARN},
        {"rope_scaling": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}},
        {"rope_scaling": YARN | {"attention_factor": 1.5}},
        {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.1}},
    ],
    ids=str,
)
def test_rope_scaling_is_right_at_twice_the_original_length(
    tmp_path: Path, kernels: Kernels, rope: dict[str, object]
) -> None:
    path = tiny_llama(tmp_path / "model", max_position_embeddings=512, **rope)
    assert_exact(path, kernels, (255, 256, 257, 511))


def test_dynamic_rope_stretches_with_the_length_of_each_sequence(
    tmp_path: Path, kernels: Kernels
) -> None:
    path = tiny_llama(
        tmp_path / "model",
        max_position_embeddings=128,
        rope_scaling={"rope_type": "dynamic", "factor": 2.0},
    )
    assert_exact(path, kernels, (127, 128))  # within the context: also hot
    model = load(path, kernels)
    pool = PagedPool(model)
    prompts = [prompt(length) for length in (129, 60, 256)]
    logits = pool.step([(PagedSequence(), token_ids) for token_ids in prompts])
    for token_ids, own in zip(prompts, torch.split(logits, [129, 60, 256]), strict=True):
        expected = reference_logits(path, token_ids)
        torch.testing.assert_close(own, expected, atol=TOLERANCE, rtol=0)


def test_decode_rows_and_prompt_chunks_of_one_step_do_not_mix(
    tmp_path: Path, kernels: Kernels
) -> None:
    path = tiny_llama(tmp_path / "model")
    pool = PagedPool(load(path, kernels))
    prompts = [prompt(length) for length in (33, 16, 70, 5)]
    sequences = [PagedSequence() for _ in prompts]
    for sequence, token_ids in zip(sequences[:2], prompts[:2], strict=True):
        pool.step([(sequence, token_ids[:-1])], logit_rows=[])
    pool.step([(sequences[2], prompts[2][:40])], logit_rows=[])
    work = [
        (sequences[0], prompts[0][-1:]),
        (sequences[1], prompts[1][-1:]),
        (sequences[2], prompts[2][40:]),
        (sequences[3], prompts[3]),
    ]
    logits = pool.step(work, num_decodes=2, logit_rows=[0, 1, 31, 36])
    expected = torch.stack([reference_logits(path, token_ids)[-1] for token_ids in prompts])
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_a_step_without_wanted_logits_returns_none(tmp_path: Path, kernels: Kernels) -> None:
    pool = PagedPool(load(tiny_llama(tmp_path / "model"), kernels))
    logits = pool.step([(PagedSequence(), prompt(20))], logit_rows=[])
    assert logits.shape == (0, 384)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_close_to_float32(
    tmp_path: Path, kernels: Kernels, family: str, dtype: torch.dtype
) -> None:
    """Octavo's error against float32 is at most twice that of `transformers` in the same dtype."""
    path = FAMILIES[family](tmp_path / family, torch_dtype=str(dtype).removeprefix("torch."))
    token_ids = prompt(90)
    exact = reference_logits(path, token_ids)
    theirs = (reference_logits(path, token_ids, dtype) - exact).pow(2).mean().sqrt()
    ours = paged_logits(load(path, kernels, dtype), token_ids, [48, 39, 1], dtype)
    assert ours.dtype == dtype
    assert (ours - exact).pow(2).mean().sqrt() <= 2 * theirs
