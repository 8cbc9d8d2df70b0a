"""Turns text and chats into token ids and back.

text  ------------------------------------> backend --> token ids
chat --> jinja template (transformers) --/
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from transformers import PreTrainedTokenizerFast

from octavo.text.byte_run import byte_tokens
from octavo.text.chat import Message, Tool, template_messages, template_tools
from octavo.text.chat_template import ChatTemplate
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.encoding import token_ids_of
from octavo.text.pretrained import load_pretrained
from octavo.text.token_text import TokenTexts


class Tokenizer:
    """A checkpoint's tokenizer; one object serves all requests, from any thread.

    Control tokens (`<|im_end|>`, `</s>`) are recognised in raw text, whose author writes the whole
    prompt, and never in the messages of a chat: there they are encoded as the characters they are.
    """

    def __init__(self, pretrained: PreTrainedTokenizerFast) -> None:
        self._pretrained = pretrained
        self._backend = pretrained.backend_tokenizer
        start = self._backend.encode("", add_special_tokens=True).ids[:1]
        self._adds_bos = start == [self.bos_token_id]
        added = self._backend.get_added_tokens_decoder()
        self.special_tokens = {i: token.content for i, token in added.items() if token.special}
        self._special_ids = frozenset(self.special_tokens)
        self.chat_template = ChatTemplate(pretrained)
        self._byte_tokens = byte_tokens(self._backend)
        self.token_texts = TokenTexts(self, self._backend, self._byte_tokens)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the tokenizer of a checkpoint folder (tokenizer.json and its neighbours).

        Raises:
            UnsupportedTokenizer: the folder has no tokenizer.json.
        """
        return cls(load_pretrained(path))

    @property
    def has_chat_template(self) -> bool:
        return bool(self.chat_template.text)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the added ones included; a model's own figure may be padded."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def bos_token_id(self) -> int | None:
        token_id: int | None = self._pretrained.bos_token_id
        return token_id

    def token(self, token_id: int) -> str:
        """As the vocabulary spells it."""
        return str(self._backend.id_to_token(token_id))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encode raw text; with special tokens, exactly one BOS even if the text spells it too."""
        token_ids = token_ids_of(self._backend, text, add_special_tokens)
        if add_special_tokens and self._adds_bos and token_ids[1:2] == [self.bos_token_id]:
            del token_ids[0]
        return token_ids

    def bad_words_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token sequences in which each word comes: behind a space, at the start of a text and
        at that of a line.

        Only the tokenizer's own way of writing counts: a word put together from other tokens is
        another sequence.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip(" ") or word
            for sequence in (
                self.encode(bare, add_special_tokens=False),
                self.encode(" " + bare, add_special_tokens=False),
                self._encode_behind("\n", bare),
            ):
                if sequence:
                    found[tuple(sequence)] = None
        return tuple(found)

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Tool] = (),
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render the model's chat template and encode it, as `apply_chat_template` does.

        The template writes BOS itself, so none is added. Text that looks like a control token is
        encoded as text, in every role. A final message that is to be continued gets no header of
        a new answer behind it.

        Raises:
            ChatError: a message or a tool is wrong; it names the field.
            ChatTemplateError: no template, no messages, or the template refused them.
            ValueError: a message spells a control token which the vocabulary also makes from plain
                text, so that it cannot be told apart.
        """
        return self.chat_template.encode(
            template_messages(messages),
            template_tools(tools),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=chat_template_kwargs or {},
        )

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode all tokens at once; ids that no token has (padding of the model) are left out."""
        return str(self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        shown: Sequence[str] = (),
    ) -> IncrementalDetokenizer:
        """Start decoding one output, token by token, as it goes on from the prompt.

        shown: special tokens that are text even where the others are skipped.
        """
        skipped_ids = self._special_ids if skip_special_tokens else frozenset[int]()
        if skipped_ids and shown:
            skipped_ids = skipped_ids.difference(map(self._backend.token_to_id, shown))
        return IncrementalDetokenizer(
            self._backend, prompt_token_ids, skipped_ids, self._byte_tokens
        )

    def _encode_behind(self, before: str, text: str) -> list[int]:
        """Tokens of a text that stands behind another; none if no token begins where it does."""
        start = self.encode(before, add_special_tokens=False)
        both = self.encode(before + text, add_special_tokens=False)
        return both[len(start) :] if both[: len(start)] == start else []
