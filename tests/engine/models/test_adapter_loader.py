"""An adapter that does not fit is refused at load, by name and with what to do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import tiny_llama
from checkpoints.adapters import tiny_adapter
from engine.tiny import tiny_engine
from octavo.checkpoint.adapter_config import parse_adapters
from octavo.checkpoint.errors import CheckpointError, UnsupportedAdapter
from octavo.engine.engine import Engine

Q = "base_model.model.model.layers.0.self_attn.q_proj"
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return tiny_engine(tiny_llama(tmp_path_factory.mktemp("refused") / "llama"), max_lora_rank=8)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    return tiny_adapter(tiny_llama(folder / "llama"), folder / "adapter", target_modules=["q_proj"])


def fields(**values: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        config = json.loads(file.read_text()) | values
        file.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))

    return change


def tensors(**values: torch.Tensor | None) -> Change:
    """Keys stand for the tensor's name below Q, unless they are whole names."""

    def change(folder: Path) -> None:
        file = folder / "adapter_model.safetensors"
        held: dict[str, torch.Tensor | None] = dict(load_file(file))
        for key, tensor in values.items():
            held[key if key.startswith("base") else f"{Q}.{key}.weight"] = tensor
        save_file({k: v for k, v in held.items() if v is not None}, file)

    return change


def whole(name: str) -> Change:
    return tensors(**{name: torch.zeros(4, 64)})


REFUSED: list[tuple[Change, str]] = [
    (fields(peft_type="IA3"), "peft_type IA3 is not served"),
    (fields(use_dora=True), "use_dora is not served; train without DoRA"),
    (fields(modules_to_save=["lm_head"]), "modules_to_save is not served.*merge"),
    (fields(bias="all"), "bias 'all' is not served; train with bias='none'"),
    (fields(lora_bias=True), "lora_bias is not served"),
    (fields(init_lora_weights="pissa"), "init_lora_weights 'pissa' changes the model's own"),
    (fields(trainable_token_indices=[1]), "trainable_token_indices is not served"),
    (fields(a_later_invention={"x": 1}), "a_later_invention is not served"),
    (fields(fan_in_fan_out=True), "fan_in_fan_out is not served"),
    (fields(r=9), "rank 9 is above the limit of 8; raise --max-lora-rank"),
    (fields(rank_pattern={"q_proj": 9}), "rank 9 is above the limit of 8"),
    (fields(rank_pattern={"(": 2}), "the pattern '\\(' of a module is none"),
    (fields(r=0), "ranks must be positive"),
    (fields(r="absent"), "the field r is missing"),
    (fields(lora_alpha="8"), "lora_alpha must be"),
    (fields(r=3), r"lora_A must have shape \(3, 64\) for this model, has \(4, 64\)"),
    (tensors(lora_A=torch.zeros(4, 32)), r"lora_A must have shape \(4, 64\).*another one"),
    (tensors(lora_B=torch.zeros(65, 4)), r"lora_B must have shape \(64, 4\)"),
    (tensors(lora_B=None), "lora_B is missing"),
    (tensors(lora_A=torch.zeros(4, 64, dtype=torch.int8)), "has dtype torch.int8"),
    (tensors(lora_magnitude_vector=torch.zeros(64)), "no place for tensor.*lora_magnitude_vector"),
    (whole("base_model.model.lm_head.lora_A.weight"), "no place for tensor.*lm_head"),
    (whole("base_model.model.model.embed_tokens.lora_embedding_A"), "no place for.*embed_tokens"),
    (whole("base_model.model.model.layers.7.mlp.up_proj.lora_A.weight"), "no place for.*layers.7"),
    (whole("base_model.model.h.0.attn.c_attn.lora_A.weight"), "no place for.*c_attn.*q_proj"),
    (
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        "pickled weights are not read",
    ),
    (
        lambda folder: (folder / "adapter_config.json").unlink(),
        "adapter_config.json does not exist",
    ),
    (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"\x80\x04pickle"),
        "is no safetensors file",
    ),
    (
        lambda folder: save_file({}, folder / "adapter_model.safetensors"),
        "holds no tensor",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_does_not_fit_is_refused(
    engine: Engine, sound: Path, tmp_path: Path, change: Change, message: str
) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "adapter"))
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        engine.adapters.load("x", folder)
    assert list(engine.adapters) == []


def test_a_file_larger_than_any_adapter_is_not_read(
    engine: Engine, sound: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "adapter"))
    with (folder / "adapter_model.safetensors").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnsupportedAdapter, match="an adapter of rank 8 at most"):
        engine.adapters.load("x", folder)


def test_equal_content_has_one_fingerprint_whatever_the_file_says_beside_it(
    engine: Engine, sound: Path, tmp_path: Path
) -> None:
    read = engine.adapters.read
    original = read("x", sound).fingerprint
    assert len(original) == 32
    same = Path(shutil.copytree(sound, tmp_path / "same"))
    fields(lora_dropout=0.5, revision="other", base_model_name_or_path="elsewhere")(same)
    assert read("y", same).fingerprint == original
    scaled = Path(shutil.copytree(sound, tmp_path / "scaled"))
    fields(lora_alpha=9)(scaled)
    moved = Path(shutil.copytree(sound, tmp_path / "moved"))
    tensors(lora_A=torch.zeros(4, 64))(moved)
    assert len({original, read("x", scaled).fingerprint, read("x", moved).fingerprint}) == 3


@pytest.mark.parametrize("setting", ["x", "=path", "x=", "a\n=p", f"{'n' * 129}=p"])
def test_settings_are_name_and_path(setting: str) -> None:
    with pytest.raises(ValueError, match="lora|name"):
        parse_adapters([setting])


def test_a_name_stands_for_one_folder() -> None:
    assert parse_adapters(["a=b=c", "d=/e"]) == {"a": Path("b=c"), "d": Path("/e")}
    with pytest.raises(ValueError, match="'a' twice"):
        parse_adapters(["a=x", "a=y"])
