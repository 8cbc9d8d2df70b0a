"""The fingerprint names content: equal for copies, different after any change, computed once."""

import os
import shutil
from pathlib import Path

import pytest

from checkpoints import tiny_llama
from octavo.checkpoint.errors import CheckpointError
from octavo.checkpoint.fingerprint import model_fingerprint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_copy_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert model_fingerprint(folder) == model_fingerprint(copy)
    assert len(model_fingerprint(folder)) == 32


def test_one_changed_bit_of_weights_or_config_changes_it(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    seen = {model_fingerprint(folder)}
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(1, 1))
    seen.add(model_fingerprint(folder))
    config = folder / "config.json"
    config.write_text(config.read_text().replace("10000.0", "10001.0"))
    os.utime(config, ns=(2, 2))
    seen.add(model_fingerprint(folder))
    assert len(seen) == 3


def test_it_is_read_from_the_cache_while_the_files_stay_as_they_are(
    tmp_path: Path, cache: Path
) -> None:
    folder = tiny_llama(tmp_path / "model")
    fingerprint = model_fingerprint(folder)
    (entry,) = (cache / "fingerprints").iterdir()
    assert entry.read_text() == fingerprint
    entry.write_text("from the cache")
    assert model_fingerprint(folder) == "from the cache"


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_llama(tmp_path / "model")
    (tmp_path / "file").write_text("no folder can be made below a file")
    expected = model_fingerprint(folder)
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert model_fingerprint(folder) == expected


def test_a_folder_without_weights_has_none(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="neither model.safetensors nor"):
        model_fingerprint(folder)
