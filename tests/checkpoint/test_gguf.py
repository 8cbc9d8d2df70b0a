"""A GGUF file becomes the same model as any other folder, once, and says what it cannot become."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from checkpoints import reference_logits, tiny_llama, tiny_qwen2, tiny_qwen3
from checkpoints.gguf_file import write_gguf
from checkpoints.paged import paged_logits, reference_kernels
from checkpoints.reference import reference_gguf_logits
from octavo.checkpoint.config import load_config
from octavo.checkpoint.errors import CheckpointError, UnsupportedModel
from octavo.checkpoint.gguf import convert_gguf
from octavo.checkpoint.weights import WeightFiles
from octavo.engine.models import load_model

TOKEN_IDS = [(7 * i + 3) % 384 for i in range(300)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def logits(path: Path) -> torch.Tensor:
    kernels = reference_kernels()
    model = load_model(path, dtype=torch.float32, device=torch.device("cpu"), kernels=kernels)
    cold = paged_logits(model, TOKEN_IDS)
    hot = paged_logits(model, TOKEN_IDS, [160, 137, 1, 1])
    torch.testing.assert_close(hot, cold, atol=1e-4, rtol=0)
    return cold


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_a_converted_llama_computes_what_transformers_reads_from_the_file(
    tmp_path: Path, is_tied: bool, theta: float
) -> None:
    source = tiny_llama(tmp_path / "source", tie_word_embeddings=is_tied, rope_theta=theta)
    file = write_gguf(source, tmp_path / "model.gguf")
    ours = logits(convert_gguf(file))
    torch.testing.assert_close(ours, reference_logits(source, TOKEN_IDS), atol=1e-4, rtol=0)
    torch.testing.assert_close(ours, reference_gguf_logits(file, TOKEN_IDS), atol=1e-4, rtol=0)


def test_qwen_files_keep_their_biases_and_norms(tmp_path: Path) -> None:
    for make in (tiny_qwen2, tiny_qwen3):
        source = make(tmp_path / make.__name__)
        file = write_gguf(source, tmp_path / f"{make.__name__}.gguf")
        expected = reference_logits(source, TOKEN_IDS)
        torch.testing.assert_close(logits(convert_gguf(file)), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0", "Q5_1"])
def test_quantised_tensors_become_float32_without_loss(tmp_path: Path, file_type: str) -> None:
    file = write_gguf(tiny_llama(tmp_path / "source"), tmp_path / "model.gguf", file_type)
    folder = convert_gguf(file)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {
        torch.float32
    }
    tensors = WeightFiles(folder).tensors
    assert tensors["model.layers.0.mlp.down_proj.weight"].gguf_type == file_type
    assert tensors["model.norm.weight"].gguf_type == ""
    expected = reference_gguf_logits(file, TOKEN_IDS)
    torch.testing.assert_close(logits(folder), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tensors_keep_their_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    source = tiny_llama(tmp_path / "source", torch_dtype=name)
    file_type = {"float16": "F16", "bfloat16": "BF16"}[name]
    folder = convert_gguf(write_gguf(source, tmp_path / "model.gguf", file_type))
    assert load_config(folder).dtype == name
    converted = load_file(folder / "model.safetensors")
    for tensor_name, tensor in load_file(source / "model.safetensors").items():
        if tensor.ndim > 1:
            assert torch.equal(converted[tensor_name], tensor), tensor_name


def test_tokenizer_chat_template_and_token_ids_come_along(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "source")
    folder = convert_gguf(
        write_gguf(source, tmp_path / "model.gguf", metadata={"tokenizer.ggml.eot_token_id": 0})
    )
    text = "Hello <|im_start|>world, 12  34 it's\n\n你好 <|im_end|>"
    expected = Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids == expected
    template = "chat_template.jinja"
    assert (folder / template).read_text() == (source / template).read_text()
    assert load_config(folder).eos_token_ids == (2, 0)


def test_linear_and_yarn_scaling_are_read_from_the_metadata(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}
    source = tiny_llama(
        tmp_path / "yarn", rope_scaling=yarn, max_position_embeddings=256, tie_word_embeddings=True
    )
    metadata: dict[str, int | float | str] = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    folder = convert_gguf(write_gguf(source, tmp_path / "yarn.gguf", metadata=metadata))
    assert load_config(folder).rope == load_config(source).rope
    source = tiny_llama(tmp_path / "linear", rope_scaling={"type": "linear", "factor": 4.0})
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    folder = convert_gguf(write_gguf(source, tmp_path / "linear.gguf", metadata=metadata))
    assert load_config(folder).rope == load_config(source).rope


def llama3_factors(factor: float, context: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """As llama.cpp's converter writes them for head_dim 16 and theta 500000."""
    factors = []
    for i in range(8):
        wave = 2 * np.pi * 500000.0 ** (2 * i / 16)
        if wave < context / 4:
            factors.append(1.0)
        elif wave > context / 1:
            factors.append(factor)
        else:
            smooth = (context / wave - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def test_llama3_factors_are_recognised_and_others_refused(tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    source = tiny_llama(
        tmp_path / "source",
        rope_theta=500000.0,
        rope_scaling=llama3,
        max_position_embeddings=65536,
    )
    factors = llama3_factors(8.0, 8192)
    file = write_gguf(
        source, tmp_path / "llama3.gguf", extra_tensors={"rope_freqs.weight": factors}
    )
    folder = convert_gguf(file)
    assert load_config(folder).rope == load_config(source).rope
    expected = reference_logits(source, TOKEN_IDS)
    torch.testing.assert_close(logits(folder), expected, atol=1e-4, rtol=0)
    factors[3] *= 1.5
    file = write_gguf(source, tmp_path / "odd.gguf", extra_tensors={"rope_freqs.weight": factors})
    with pytest.raises(UnsupportedModel, match="rope_freqs.weight"):
        convert_gguf(file)


def test_what_octavo_does_not_compute_is_refused_by_name(tmp_path: Path, cache: Path) -> None:
    source = tiny_llama(tmp_path / "source")
    extra = np.zeros((4, 4), dtype=np.float32)
    experts = write_gguf(
        source, tmp_path / "experts.gguf", extra_tensors={"blk.0.ffn_gate_inp.weight": extra}
    )
    with pytest.raises(UnsupportedModel, match="blk.0.ffn_gate_inp.weight"):
        convert_gguf(experts)
    longrope = write_gguf(
        source, tmp_path / "longrope.gguf", metadata={"llama.rope.scaling.type": "longrope"}
    )
    with pytest.raises(UnsupportedModel, match="llama.rope.scaling.type 'longrope'"):
        convert_gguf(longrope)
    parts = write_gguf(source, tmp_path / "parts.gguf", metadata={"split.count": 2})
    with pytest.raises(UnsupportedModel, match="split.count"):
        convert_gguf(parts)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "gemma2"}))
    with pytest.raises(UnsupportedModel, match="general.architecture 'gemma2'"):
        convert_gguf(write_gguf(source, tmp_path / "gemma.gguf"))
    assert [path.name for path in (cache / "gguf").iterdir() if path.suffix != ".lock"] == []


def test_a_damaged_file_is_refused_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGML" + bytes(100))
    with pytest.raises(CheckpointError, match="model.gguf"):
        convert_gguf(file)
    whole = write_gguf(tiny_llama(tmp_path / "source"), tmp_path / "whole.gguf").read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="model.gguf"):
        convert_gguf(file)
    assert [path.name for path in (cache / "gguf").iterdir() if path.suffix != ".lock"] == []


def test_conversion_happens_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    file = write_gguf(tiny_llama(tmp_path / "source"), tmp_path / "model.gguf")
    stages: list[tuple[int, int]] = []
    first = convert_gguf(file, lambda stage, done, total: stages.append((done, total)))
    size = sum(tensor.nbytes for tensor in load_file(first / "model.safetensors").values())
    assert stages[0] == (0, size)
    assert stages[-1] == (size, size)
    stages.clear()
    assert convert_gguf(file, lambda stage, done, total: stages.append((done, total))) == first
    assert stages == []
    os.utime(file, ns=(1, 1))
    assert convert_gguf(file) != first


def test_two_processes_that_convert_at_once_end_with_one_whole_model(tmp_path: Path) -> None:
    file = write_gguf(tiny_llama(tmp_path / "source"), tmp_path / "model.gguf")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(convert_gguf, [file, file], chunksize=1)
    assert first == second
    assert [path for path in first.parent.iterdir() if path.name.startswith(".")] == []
    assert load_config(first).num_layers == 2
    assert load_file(first / "model.safetensors").keys()
