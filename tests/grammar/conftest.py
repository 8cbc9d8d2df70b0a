"""A small vocabulary, and ways to walk through a grammar with it."""

import pytest

from checkpoints import tiny_tokenizer, write_tokenizer
from checkpoints.tokenizer import IM_END
from octavo.grammar.compiler import Compiler
from octavo.grammar.vocabulary import Vocabulary

VOCAB_SIZE = 384


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("vocabulary")
    write_tokenizer(folder, tiny_tokenizer(VOCAB_SIZE))
    return Vocabulary.load(folder, VOCAB_SIZE, [IM_END])


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> Compiler:
    return Compiler(vocabulary)
