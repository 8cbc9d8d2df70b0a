"""A byte-level tokenizer with chosen words as tokens, and a model that says exactly these."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from checkpoints import scripted
from checkpoints.tokenizer import SPECIAL_TOKENS

START = 258  # the last byte's token: a prompt that no script contains


def word_tokenizer(words: Sequence[str]) -> Tokenizer:
    """Every byte is a token, and so is every word (a leading space belongs to it)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: i for i, piece in enumerate([*SPECIAL_TOKENS, *alphabet])}
    merges: dict[tuple[str, str], None] = {}
    for word in map(spelled, words):
        for end in range(2, len(word) + 1):
            merges[(word[: end - 1], word[end - 1])] = None
            pieces.setdefault(word[:end], len(pieces))
    tokenizer = Tokenizer(models.BPE(pieces, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def spelled(word: str) -> str:
    """As byte-level vocabularies spell it."""
    (piece, _), *others = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(word)
    assert not others
    return piece


def id_of(tokenizer: Tokenizer, piece: str) -> int:
    """The token that the vocabulary spells so."""
    token_id = tokenizer.token_to_id(piece)
    assert token_id is not None, piece
    return token_id


def saying(path: Path, tokenizer: Tokenizer, token_ids: Sequence[int], start: int = START) -> Path:
    """A checkpoint that answers a prompt ending in `start` with these tokens, then ends."""
    assert len({start, *token_ids}) == len(token_ids) + 1, "a table knows one successor of a token"
    table = dict(zip([start, *token_ids], [*token_ids, 2], strict=True))
    return scripted(path, table, tokenizer=tokenizer)
