"""The text and the bytes of single tokens, as they stand in a text: for log-probabilities.

A token may be half a character. Its text is then a replacement character, its bytes are its own.
"""

from typing import TYPE_CHECKING

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from octavo.text.byte_run import REPLACEMENT

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

MAX_KEPT = 1 << 18


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte, as byte-level vocabularies spell bytes (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
assert _ALPHABET.keys() == set(pre_tokenizers.ByteLevel.alphabet())


class TokenTexts:
    """Of one tokenizer; what was asked once is kept."""

    def __init__(self, tokenizer: "Tokenizer", backend: Backend, bytes_of: dict[int, int]) -> None:
        """bytes_of: token id -> byte, of byte-fallback tokens."""
        self._tokenizer = tokenizer
        self._backend = backend
        self._bytes_of = bytes_of
        # Decoders drop a space at the start of a text: each token is decoded behind another one.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._known: dict[int, tuple[str, bytes]] = {}

    def of(self, token_id: int) -> tuple[str, bytes]:
        """Text and bytes of a token; both are empty for ids that no token has."""
        found = self._known.get(token_id)
        if found is None:
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            found = self._known[token_id] = self._find(token_id)
        return found

    def _find(self, token_id: int) -> tuple[str, bytes]:
        detokenizer = self._tokenizer.detokenizer(self._before, skip_special_tokens=False)
        text = detokenizer.push(token_id) + detokenizer.flush()
        if REPLACEMENT not in text:
            return text, text.encode()
        if token_id in self._bytes_of:
            return text, bytes([self._bytes_of[token_id]])
        piece = self._backend.id_to_token(token_id) or ""
        if all(character in _ALPHABET for character in piece):
            return text, bytes([_ALPHABET[character] for character in piece])
        return text, text.encode()
