"""Loading takes exactly the tensors the model needs, from one file or many, or refuses by name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import reference_logits, tiny_llama, tiny_qwen2, tiny_qwen3
from checkpoints.paged import paged_logits, reference_kernels
from octavo.checkpoint.errors import CheckpointError
from octavo.engine.models import DecoderModel, load_model

TOKEN_IDS = [(11 * i + 5) % 384 for i in range(50)]
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Tensors = dict[str, torch.Tensor]


def load(path: Path) -> DecoderModel:
    device = torch.device("cpu")
    return load_model(path, dtype=torch.float32, device=device, kernels=reference_kernels())


def rewrite(path: Path, change: Callable[[Tensors], object]) -> Path:
    """Change the tensors of a checkpoint in place."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def shard(path: Path, num_shards: int = 3) -> Path:
    """Split the checkpoint as the hub splits large ones."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for index in range(num_shards):
        name = f"model-{index + 1:05}-of-{num_shards:05}.safetensors"
        part = dict(list(tensors.items())[index::num_shards])
        save_file(part, path / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index_file = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index_file))
    return path


def assert_equals_reference(path: Path) -> None:
    expected = reference_logits(path, TOKEN_IDS)
    torch.testing.assert_close(paged_logits(load(path), TOKEN_IDS), expected, atol=1e-4, rtol=0)


def test_a_tied_head_needs_no_tensor_of_its_own(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model", tie_word_embeddings=True)
    assert HEAD not in load_file(path / "model.safetensors")
    assert_equals_reference(path)


def test_a_tied_head_may_be_stored_again(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model", tie_word_embeddings=True)
    rewrite(path, lambda tensors: tensors.update({HEAD: tensors[EMBED].clone()}))
    assert_equals_reference(path)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model", tie_word_embeddings=True)
    rewrite(path, lambda tensors: tensors.update({HEAD: tensors[EMBED] + 1}))
    with pytest.raises(CheckpointError, match=f"{HEAD} differs from {EMBED}"):
        load(path)


def test_an_untied_head_is_loaded(tmp_path: Path) -> None:
    assert_equals_reference(tiny_llama(tmp_path / "model", tie_word_embeddings=False))


def test_a_missing_untied_head_is_refused_by_name(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model", tie_word_embeddings=False)
    rewrite(path, lambda tensors: tensors.pop(HEAD))
    with pytest.raises(CheckpointError, match="lacks tensor lm_head.weight"):
        load(path)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (tiny_qwen2, "model.layers.1.self_attn.k_proj.bias"),
        (tiny_qwen3, "model.layers.0.self_attn.q_norm.weight"),
        (tiny_llama, "model.layers.1.mlp.up_proj.weight"),
        (tiny_llama, "model.norm.weight"),
    ],
)
def test_any_missing_tensor_is_named(
    tmp_path: Path, make: Callable[[Path], Path], name: str
) -> None:
    path = rewrite(make(tmp_path / "model"), lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=name):
        load(path)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.input_layernorm.weight",
        "model.layers.0.block_sparse_moe.gate.weight",
    ],
)
def test_a_tensor_without_a_place_is_named(tmp_path: Path, name: str) -> None:
    path = tiny_llama(tmp_path / "model")
    rewrite(path, lambda tensors: tensors.update({name: torch.zeros(64)}))
    with pytest.raises(CheckpointError, match=f"no place for tensor {name}"):
        load(path)


def test_saved_rotary_tables_are_passed_over(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model")
    table = torch.zeros(8)
    rewrite(
        path,
        lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": table}),
    )
    assert_equals_reference(path)


def test_a_wrong_shape_or_dtype_is_named(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "shape")
    rewrite(path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(
        CheckpointError, match=r"model.norm.weight must have shape \(64,\).*\(63,\)"
    ):
        load(path)
    path = tiny_llama(tmp_path / "dtype")
    numbers = torch.ones(64, dtype=torch.int8)
    rewrite(path, lambda tensors: tensors.update({"model.norm.weight": numbers}))
    with pytest.raises(CheckpointError, match="model.norm.weight has dtype I8"):
        load(path)


def test_shards_are_one_model(tmp_path: Path) -> None:
    assert_equals_reference(shard(tiny_llama(tmp_path / "model")))


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    path = shard(tiny_llama(tmp_path / "model"))
    index = path / "model.safetensors.index.json"
    entries = json.loads(index.read_text())
    home, shards = entries["weight_map"][EMBED], set(entries["weight_map"].values())
    entries["weight_map"][EMBED] = "model-00009-of-00003.safetensors"
    index.write_text(json.dumps(entries))
    with pytest.raises(CheckpointError, match="model-00009-of-00003.safetensors.*not exist"):
        load(path)
    entries["weight_map"][EMBED] = next(name for name in sorted(shards) if name != home)
    index.write_text(json.dumps(entries))
    with pytest.raises(CheckpointError, match=f"places tensor {EMBED}"):
        load(path)
    entries["weight_map"][EMBED] = "../escape.safetensors"
    index.write_text(json.dumps(entries))
    with pytest.raises(CheckpointError, match="escape.safetensors"):
        load(path)


def test_a_cut_off_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model")
    weights = path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=f"has {len(whole) - 100} bytes"):
        load(path)
    weights.write_bytes(b"PK" + bytes(200))
    with pytest.raises(CheckpointError, match="no safetensors file"):
        load(path)


def test_replacing_the_file_does_not_change_a_loaded_model(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model")
    model = load(path)
    before = paged_logits(model, TOKEN_IDS)
    weights = path / "model.safetensors"
    with weights.open("r+b") as file:  # same inode: a mapped tensor would see it
        file.write(bytes(weights.stat().st_size))
    assert torch.equal(paged_logits(model, TOKEN_IDS), before)
