"""A model's tokens as grammars need them: each one's bytes, and which ones end an output."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

_ADDED = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


class NoGrammars(ValueError):
    """Grammars cannot be used with this model."""


@dataclass(frozen=True)
class Vocabulary:
    """Of one model."""

    tokenizer_json: str  # every end of sequence a special token; empty if there is none
    special_tokens: dict[int, str]  # those that no text is made of, by id
    vocab_size: int  # of the model, which may have more rows of logits than there are tokens
    eos_token_ids: tuple[int, ...]

    @classmethod
    def load(cls, folder: Path, vocab_size: int, eos_token_ids: Iterable[int]) -> "Vocabulary":
        """Read it from a checkpoint; a folder without a tokenizer gives one that has no tokens.

        No `transformers`: where its classes rebuild a tokenizer, the tokens stay what they are.
        """
        path, eos = folder / "tokenizer.json", tuple(sorted(eos_token_ids))
        if not path.is_file():
            return cls("", {}, vocab_size, eos)
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        added = _added_tokens(content, folder, eos)
        if added != content["added_tokens"]:
            text = json.dumps({**content, "added_tokens": added})
        special_tokens = {token["id"]: token["content"] for token in added if token["special"]}
        return cls(text, special_tokens, vocab_size, eos)

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """The library's own. Making it takes a second at most, and holds the interpreter's lock.

        Raises:
            NoGrammars: there is none the library can read, or the model ends no output.
        """
        if not self.tokenizer_json:
            raise NoGrammars("the model has no tokenizer.json")
        if not self.eos_token_ids:
            raise NoGrammars("the model has no end-of-sequence token, which ends an output")
        size = max(self.vocab_size, 1 + max(self.special_tokens, default=0))
        try:
            return LLTokenizer(
                self.tokenizer_json, n_vocab=size, eos_token=list(self.eos_token_ids)
            )
        except Exception as error:
            raise NoGrammars(f"the model's tokenizer is not fit for grammars: {error}") from error


def _added_tokens(
    content: dict[str, Any], folder: Path, eos_token_ids: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Those of tokenizer.json and its neighbour, every end of sequence special among them.

    One that counts as text would be allowed inside of strings, and would end the output there.
    """
    added = {token["id"]: token for token in content["added_tokens"]}
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    for token_id, token in settings.get("added_tokens_decoder", {}).items():
        known = {"id": int(token_id), "content": token["content"]}
        added.setdefault(int(token_id), {**_ADDED, **known, "special": token.get("special", False)})
    texts = _texts(content["model"]["vocab"], eos_token_ids)
    for token_id in eos_token_ids:
        token = added.get(token_id) or {**_ADDED, "id": token_id, "content": texts[token_id]}
        added[token_id] = {**token, "special": True}
    return [added[token_id] for token_id in sorted(added)]


def _texts(
    vocabulary: dict[str, int] | list[list[Any]], token_ids: tuple[int, ...]
) -> dict[int, str]:
    """Texts of tokens; of those that the vocabulary has not, some that no text holds."""
    if isinstance(vocabulary, list):  # Unigram: pieces and scores, in the order of ids
        found = {i: vocabulary[i][0] for i in token_ids if i < len(vocabulary)}
    else:
        found = {i: text for text, i in vocabulary.items() if i in token_ids}
    return {token_id: found.get(token_id, f"<|end {token_id}|>") for token_id in token_ids}
