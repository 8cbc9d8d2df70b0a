"""Text of an output while its tokens arrive, never half a character.

    tokens:  ... a  b | c  d | e        text(window) minus text(context) is what is new;
                 context pending        a window ending in half a character waits

Decoders look at their neighbours (a leading space, a character split over tokens), so each token is
decoded behind the tokens before it; that window stays a few tokens long.
"""

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as Backend

from octavo.text.byte_run import REPLACEMENT, ByteRun

# A character has at most four bytes: of four tokens without a whole character the first is broken.
MAX_PENDING_TOKENS = 4
CONTEXT_TOKENS = 8


class IncrementalDetokenizer:
    """Yields the text that `decode(prompt + output)` has behind `decode(prompt)`, piece by piece.

    One difference: of a malformed run of byte-fallback tokens (`<0xE2>`) `decode` keeps nothing,
    here its whole characters stay, as in SentencePiece itself (`ByteRun`).
    """

    def __init__(
        self,
        backend: Backend,
        prompt_token_ids: Sequence[int],
        skipped_ids: frozenset[int],
        byte_tokens: Mapping[int, int],
    ) -> None:
        self._backend = backend
        self._skipped_ids = skipped_ids
        self._byte_tokens = byte_tokens
        self._run = ByteRun(self._prompt_bytes(prompt_token_ids) if byte_tokens else b"")
        self._window: list[int] = self._tail(prompt_token_ids)
        self._num_context = len(self._window)  # leading tokens of the window whose text was sent
        self._sent = self._decode(self._window)  # what of the window's text was sent

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is certain now, often none."""
        byte = self._byte_tokens.get(token_id)
        if byte is not None:
            return self._push_byte(token_id, byte)
        if not self._is_visible(token_id):
            return ""  # decoders do not see it: a run of bytes goes on
        if self._run.is_open:
            return self._run.end() + self._push_piece(token_id)
        return self._push_piece(token_id)

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Take several tokens and return the text that is certain now, as `push` for each."""
        if self._run.is_open or not self._byte_tokens.keys().isdisjoint(token_ids):
            return "".join([self.push(i) for i in token_ids])
        return self._push_pieces(token_ids)

    def flush(self) -> str:
        """Return what is held at the end: characters cut short, as `decode` shows them."""
        return self._run.end() + self._flush_window()

    def _push_byte(self, token_id: int, byte: int) -> str:
        """Bytes make characters by themselves; the last one is the context of what follows."""
        held = self._flush_window()
        text = self._run.push(byte)
        if text == " " and not self._sent:
            text = self._decode([*self._window, token_id])  # decoders drop one at the very start
        self._window = [token_id]
        self._num_context = 1
        self._sent = self._decode(self._window)
        return held + text

    def _push_piece(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        new_text = self._new_text(text)
        if text.endswith(REPLACEMENT):
            if len(self._window) - self._num_context < MAX_PENDING_TOKENS:
                return self._whole_part(text)
            return self._release_broken(new_text)
        self._slide(new_text)
        return new_text

    def _push_pieces(self, token_ids: Sequence[int]) -> str:
        """Decode tokens, none of them a byte, at once; one by one where characters are cut."""
        visible = [i for i in token_ids if self._is_visible(i)]
        window = self._window + visible
        text = self._decode(window) if len(visible) > 1 else REPLACEMENT
        if REPLACEMENT in text or not text.startswith(self._sent):
            return "".join([self._push_piece(i) for i in visible])
        new_text = text[len(self._sent) :]
        self._window = window
        self._num_context = len(window)
        self._sent = text
        # The context of the next token: the last ones that are whole characters.
        for num_tokens in range(1, min(len(window), CONTEXT_TOKENS + 1)):
            tail = self._decode(window[-num_tokens:])
            if tail and REPLACEMENT not in tail:
                self._window = window[-num_tokens:]
                self._num_context = num_tokens
                self._sent = tail
                break
        return new_text

    def _whole_part(self, text: str) -> str:
        """Send what stands before a character cut short."""
        whole = text.rstrip(REPLACEMENT)
        if not whole.startswith(self._sent):
            return ""
        new_text, self._sent = whole[len(self._sent) :], whole
        return new_text

    def _flush_window(self) -> str:
        new_text = self._new_text(self._decode(self._window))
        self._num_context = len(self._window)
        self._sent += new_text
        return new_text

    def _new_text(self, text: str) -> str:
        if text.startswith(self._sent):
            return text[len(self._sent) :]
        # A prompt that ended in half a character, which is whole now.
        whole = self._sent.rstrip(REPLACEMENT)
        if whole != self._sent and text.startswith(whole):
            return text[len(whole) :]
        # The decoder took back what was sent.
        return self._decode(self._window[self._num_context :])

    def _slide(self, new_text: str) -> None:
        """Let the tokens just sent be the context of the next one; without text they are none."""
        if new_text:
            self._window = self._window[self._num_context :]
            self._sent = self._decode(self._window)
        self._num_context = len(self._window)

    def _release_broken(self, new_text: str) -> str:
        """Send what cannot become whole; the last three tokens may still begin a character."""
        self._window = self._window[1 - MAX_PENDING_TOKENS :]
        tail = self._decode(self._window)
        if tail.endswith(REPLACEMENT):
            self._num_context = 0
            self._sent = tail[:-1]
            return new_text[:-1]
        self._num_context = len(self._window)
        self._sent = tail
        return new_text

    def _tail(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """Return the prompt's end, back to where its text consists of whole characters."""
        num_tokens = CONTEXT_TOKENS
        while True:
            tail = [i for i in prompt_token_ids[-num_tokens:] if self._is_visible(i)]
            text = self._decode(tail)
            if num_tokens >= len(prompt_token_ids) or (text and REPLACEMENT not in text):
                return tail
            num_tokens *= 4

    def _prompt_bytes(self, prompt_token_ids: Sequence[int]) -> bytes:
        """What a character that the prompt cuts begins with, and at most 3 bytes."""
        found: list[int] = []
        for token_id in reversed(prompt_token_ids):
            byte = self._byte_tokens.get(token_id)
            if byte is not None:
                found.append(byte)
            if len(found) == MAX_PENDING_TOKENS - 1 or (
                byte is None and self._is_visible(token_id)
            ):
                break
        return bytes(reversed(found))

    def _is_visible(self, token_id: int) -> bool:
        """Whether a decoder sees the token: models may be padded beyond the vocabulary."""
        return token_id not in self._skipped_ids and self._backend.id_to_token(token_id) is not None

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=False)
