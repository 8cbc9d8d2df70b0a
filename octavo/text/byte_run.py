"""UTF-8 spelled in byte-fallback tokens (`<0xE2>`), which SentencePiece vocabularies have."""

import codecs

from tokenizers import Tokenizer as Backend

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_EACH_BYTE = "octavo.replace_each_byte"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(_EACH_BYTE, _replace_each_byte)
_Decoder = codecs.getincrementaldecoder("utf-8")


def byte_tokens(backend: Backend) -> dict[int, int]:
    """Token id -> byte, for vocabularies whose decoder knows byte-fallback tokens."""
    ids = {backend.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    ids.pop(None, None)
    probe = backend.token_to_id("<0x41>")
    if probe is None or backend.decode([probe]) != "A":
        return {}
    return {token_id: byte for token_id, byte in ids.items() if token_id is not None}


class ByteRun:
    """Characters of consecutive byte tokens, each with its last byte.

    As SentencePiece has it, each byte that belongs to no character is one replacement character,
    whatever stands before or behind it. (`tokenizers` replaces a whole run once any of it is
    malformed, which cannot be known while the run grows.)
    """

    def __init__(self, prompt_end: bytes = b"") -> None:
        """prompt_end: what the prompt ends in; a character that it cuts is completed here."""
        self._decoder = _Decoder(_EACH_BYTE)
        self._decoder.decode(prompt_end)
        # Shown already, as replacement characters, where the prompt was.
        self._num_shown = len(self._decoder.getstate()[0])
        self.is_open = self._num_shown > 0

    def push(self, byte: int) -> str:
        """Take the next byte; return what is certain now."""
        self.is_open = True
        return self._unseen(self._decoder.decode(bytes((byte,))))

    def end(self) -> str:
        """No byte follows: return the rest, which is broken."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self.is_open = False
        return self._unseen(text)

    def _unseen(self, text: str) -> str:
        if not (text and self._num_shown):
            return text
        shown, self._num_shown = REPLACEMENT * self._num_shown, 0
        return text.removeprefix(shown)
