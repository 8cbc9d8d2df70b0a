"""config.json means what it means to `transformers`, and what Octavo does not know is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, GenerationConfig

from checkpoints import FAMILIES, tiny_llama, tiny_mistral, tiny_qwen2, tiny_qwen3
from checkpoints.families import BASE, write_config
from octavo.checkpoint.config import (
    GenerationDefaults,
    RopeConfig,
    load_config,
    load_generation_defaults,
)
from octavo.checkpoint.errors import CheckpointError, UnsupportedModel


def config_folder(path: Path, architecture: str, **overrides: object) -> Path:
    """A folder with config.json only; an override of `...` leaves the field out."""
    path.mkdir(exist_ok=True)
    model_type = architecture.removesuffix("ForCausalLM").lower()
    fields = BASE | {"architectures": [architecture], "model_type": model_type} | overrides
    fields = {name: value for name, value in fields.items() if value is not ...}
    (path / "config.json").write_text(json.dumps(fields))
    return path


ARCHITECTURES = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_absent_fields_mean_what_transformers_assumes(tmp_path: Path, architecture: str) -> None:
    path = config_folder(
        tmp_path,
        architecture,
        head_dim=...,
        rope_theta=...,
        rms_norm_eps=...,
        tie_word_embeddings=...,
        num_key_value_heads=...,
        num_attention_heads=32,
        hidden_size=512,
    )
    ours, theirs = load_config(path), AutoConfig.from_pretrained(path)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 512 // 32)
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    window = theirs.sliding_window if architecture == "MistralForCausalLM" else None
    assert ours.sliding_windows == (window or 0,) * 2


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_absent_eos_is_that_of_the_family_and_a_null_one_is_none(
    tmp_path: Path, architecture: str
) -> None:
    path = config_folder(tmp_path, architecture, eos_token_id=...)
    theirs = GenerationConfig.from_model_config(AutoConfig.from_pretrained(path)).eos_token_id
    assert load_config(path).eos_token_ids == (() if theirs is None else (theirs,))
    assert load_config(config_folder(tmp_path, architecture, eos_token_id=None)).eos_token_ids == ()


def test_generation_config_names_the_end_tokens_before_config(tmp_path: Path) -> None:
    path = config_folder(tmp_path, "LlamaForCausalLM", eos_token_id=[5, 6])
    assert load_config(path).eos_token_ids == (5, 6)
    generation = path / "generation_config.json"
    generation.write_text('{"eos_token_id": [7, 8, 9]}')
    assert load_config(path).eos_token_ids == (7, 8, 9)
    generation.write_text('{"eos_token_id": 7, "bos_token_id": 3}')
    assert load_config(path).eos_token_ids == (7,)
    assert load_config(path).bos_token_id == 3
    generation.write_text('{"temperature": 0.5}')
    assert load_config(path).eos_token_ids == (5, 6)


def test_only_sampling_values_that_are_written_become_defaults(tmp_path: Path) -> None:
    assert load_generation_defaults(tmp_path) == GenerationDefaults()
    generation = tmp_path / "generation_config.json"
    generation.write_text('{"do_sample": false, "eos_token_id": 2, "top_k": null}')
    assert load_generation_defaults(tmp_path) == GenerationDefaults()
    generation.write_text('{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95}')
    expected = GenerationDefaults(temperature=0.6, top_k=20, top_p=0.95)
    assert load_generation_defaults(tmp_path) == expected
    generation.write_text('{"temperature": "warm"}')
    with pytest.raises(CheckpointError, match="temperature must be int or float, got 'warm'"):
        load_generation_defaults(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("MistralForCausalLM", {"sliding_window": 64}),
        ("MistralForCausalLM", {"sliding_window": None}),
        ("Qwen2ForCausalLM", {"sliding_window": 64}),
        ("Qwen2ForCausalLM", {"sliding_window": 64, "use_sliding_window": True}),
        (
            "Qwen3ForCausalLM",
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
        ),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "max_window_layers": 0}),
        (
            "Qwen3ForCausalLM",
            {
                "use_sliding_window": True,
                "sliding_window": 32,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
        ),
    ],
    ids=str,
)
def test_windows_lie_where_transformers_puts_them(
    tmp_path: Path, architecture: str, overrides: dict[str, object]
) -> None:
    path = config_folder(tmp_path, architecture, num_hidden_layers=4, **overrides)
    theirs = AutoConfig.from_pretrained(path)
    if architecture == "MistralForCausalLM":
        expected = [theirs.sliding_window or 0] * 4
    else:
        expected = [
            theirs.sliding_window if layer_type == "sliding_attention" else 0
            for layer_type in theirs.layer_types
        ]
    assert list(load_config(path).sliding_windows) == expected


def test_old_and_new_spelling_of_rope_agree(tmp_path: Path) -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16}
    new = config_folder(
        tmp_path / "new",
        "LlamaForCausalLM",
        rope_theta=...,
        rope_parameters=scaling | {"rope_type": "yarn", "rope_theta": 5e5},
    )
    old = config_folder(
        tmp_path / "old",
        "LlamaForCausalLM",
        rope_theta=5e5,
        rope_scaling=scaling | {"type": "yarn"},
    )
    expected = RopeConfig(
        rope_type="yarn",
        theta=5e5,
        factor=4.0,
        original_max_position_embeddings=1024,
        beta_fast=16.0,
    )
    assert load_config(new).rope == load_config(old).rope == expected


REFUSED = [
    ({"architectures": ["GemmaForCausalLM"]}, "architecture GemmaForCausalLM"),
    ({"architectures": []}, "architecture none"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type 'longrope'"),
    ({"rope_scaling": {"type": "mrope"}}, "rope_type 'mrope'"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ({"layer_types": ["chunked_attention", "full_attention"]}, "'chunked_attention'"),
    ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, "layer_types"),
    ({"head_dim": 15}, "head_dim must be even, got 15"),
    ({"dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn'"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_octavo_does_not_compute_is_refused_by_name(
    tmp_path: Path, overrides: dict[str, object], message: str
) -> None:
    path = config_folder(tmp_path, "LlamaForCausalLM", **overrides)
    with pytest.raises(UnsupportedModel, match=message):
        load_config(path)


WRONG = [
    ({"hidden_size": ...}, "the field hidden_size is missing"),
    ({"vocab_size": "big"}, "vocab_size must be int, got 'big'"),
    ({"num_hidden_layers": True}, "num_hidden_layers must be int, got True"),
    ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple"),
    ({"num_hidden_layers": 0}, "num_layers must be positive, got 0"),
    ({"eos_token_id": 384}, "eos_token_id must be 0 to 383, got 384"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor must be positive, got 0"),
    ({"rope_theta": 0.0}, "rope_theta must be above 1, got 0.0"),
    ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
]


@pytest.mark.parametrize(("overrides", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_field_is_named_with_its_value(
    tmp_path: Path, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_config(config_folder(tmp_path, "LlamaForCausalLM", **overrides))


def test_a_window_that_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = config_folder(tmp_path, "MistralForCausalLM", sliding_window=0)
    with pytest.raises(CheckpointError, match="sliding_window must be positive, got 0"):
        load_config(path)
    path = config_folder(
        tmp_path,
        "Qwen2ForCausalLM",
        sliding_window=8,
        layer_types=["full_attention", "sliding_attention"],
    )
    with pytest.raises(CheckpointError, match="sliding_window is not in use"):
        load_config(path)


def test_a_folder_without_a_readable_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config.json does not exist"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="config.json cannot be read"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must hold a JSON object, got list"):
        load_config(tmp_path)


def test_the_tiny_families_are_what_they_say(tmp_path: Path) -> None:
    assert tiny_mistral in FAMILIES.values()
    assert load_config(tiny_llama(tmp_path / "llama")).sliding_windows == (0, 0)
    assert load_config(tiny_mistral(tmp_path / "mistral")).sliding_windows == (64, 64)
    assert load_config(tiny_qwen2(tmp_path / "qwen2")).qkv_bias
    assert not load_config(tmp_path / "qwen2").o_bias
    qwen3 = load_config(tiny_qwen3(tmp_path / "qwen3"))
    assert qwen3.qk_norm
    assert qwen3.head_dim * qwen3.num_heads != qwen3.hidden_size


def test_the_package_is_read_without_torch(tmp_path: Path) -> None:
    write_config(tmp_path, BASE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    program = (
        "import sys; from pathlib import Path\n"
        "import octavo.checkpoint.resolve, octavo.checkpoint.fingerprint, octavo.checkpoint.gguf\n"
        "import octavo.demo\n"
        "from octavo.checkpoint.config import load_config\n"
        f"load_config(Path({str(tmp_path)!r}))\n"
        "loaded = {'torch', 'transformers', 'safetensors', 'gguf'} & set(sys.modules)\n"
        "sys.exit(f'imported {loaded}' if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
