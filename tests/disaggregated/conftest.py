"""Tiny checkpoints shared by the tests of a prefill and a decode worker together."""

from pathlib import Path

import pytest

from checkpoints import scripted, tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def counting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After token t comes t + 1, from 10 up to 99; after anything else comes EOS."""
    folder = tmp_path_factory.mktemp("counting") / "model"
    return scripted(folder, {token: token + 1 for token in range(10, 99)})
