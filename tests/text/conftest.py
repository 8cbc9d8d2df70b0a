from pathlib import Path

import pytest

from octavo.text.tokenizer import Tokenizer
from text.vocabularies import byte_level, metaspace, word_piece


@pytest.fixture(scope="session")
def byte_level_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def metaspace_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return metaspace(tmp_path_factory.mktemp("metaspace"))


@pytest.fixture(scope="session")
def byte_level_tokenizer(byte_level_path: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_path)


@pytest.fixture(scope="session")
def metaspace_tokenizer(metaspace_path: Path) -> Tokenizer:
    return Tokenizer.load(metaspace_path)


@pytest.fixture(scope="session")
def word_piece_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(word_piece(tmp_path_factory.mktemp("word_piece")))
