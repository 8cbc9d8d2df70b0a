"""A model is found by folder, file, demo name or hub id, and a name that is none says so."""

from pathlib import Path

import pytest

from checkpoints import tiny_llama
from checkpoints.gguf_file import write_gguf
from octavo.checkpoint.config import load_config
from octavo.checkpoint.errors import ModelNotFound
from octavo.checkpoint.resolve import resolve_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    assert resolve_model(str(folder)) == folder


def test_a_gguf_file_is_converted_into_the_cache(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tiny_llama(tmp_path / "source"), tmp_path / "model.GGUF")
    folder = resolve_model(str(file))
    assert folder.parent == cache / "gguf"
    assert load_config(folder) == load_config(resolve_model(str(file)))


def test_a_name_that_is_nothing_is_refused_with_what_it_could_be(tmp_path: Path) -> None:
    with pytest.raises(
        ModelNotFound, match="no folder, no .gguf file, not 'smollm2-135m-instruct'"
    ):
        resolve_model("no such model")
    with pytest.raises(ModelNotFound, match=r"missing.gguf does not exist"):
        resolve_model(str(tmp_path / "missing.gguf"))
    with pytest.raises(ModelNotFound, match="has no config.json"):
        resolve_model(str(tmp_path))


def test_a_hub_id_that_cannot_be_fetched_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelNotFound, match="'nobody/nothing' is no local folder"):
        resolve_model("nobody/nothing")
