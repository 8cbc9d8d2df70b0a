"""A model's chat template: messages and tools in, prompt text or token ids out.

Rendered by `transformers`, so that prompts are those of `apply_chat_template`. Text that looks like
a control token stays text, wherever a caller wrote it.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerFast

from octavo.text.encoding import token_ids_of


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template refused the messages."""


# What `apply_chat_template` itself takes is no variable of a template.
_RESERVED = frozenset(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters)
_RESERVED_NAMES = _RESERVED | {"messages"}
_PROBE = "Probe"
MAX_DEPTH = 64


class ChatTemplate:
    """The template of one tokenizer; serves all requests, from any thread."""

    def __init__(self, pretrained: PreTrainedTokenizerFast) -> None:
        self._pretrained = pretrained
        backend = pretrained.backend_tokenizer
        added = backend.get_added_tokens_decoder().values()
        # White space is no control token, even where it has a token of its own (Gemma's "\n\n").
        contents = [token.content for token in added if token.content.strip()]
        self._control_text = re.compile("|".join(map(re.escape, contents)) or "(?!)")

    @property
    def text(self) -> str:
        """Its source; where a model has one for tools and one without, both."""
        template: str | dict[str, str] | None = self._pretrained.chat_template
        return "\n".join(template.values()) if isinstance(template, dict) else template or ""

    @property
    def takes_tools(self) -> bool:
        return "tools" in self.text

    @cached_property
    def takes_content_parts(self) -> bool:
        """Whether a message's content may be a list of parts: others would print the list."""
        parts = [{"type": "text", "text": _PROBE}]
        try:
            prompt = self._render([{"role": "user", "content": parts}], {})
        except ChatTemplateError:
            return False
        return _PROBE in prompt and re.search("[\"']type[\"']", prompt) is None

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """Render and encode; the template writes BOS itself, so none is added.

        Raises:
            ChatTemplateError: no template, nothing to render, or the template refused it.
            ValueError: a message spells a control token which the vocabulary also makes from plain
                text, so that it cannot be told apart.
        """
        self._check(messages, tools, variables)
        if continue_final_message and not messages[-1]["content"]:
            raise ChatTemplateError("continue_final_message needs content in the last message")
        options: dict[str, Any] = {
            "tools": list(tools) or None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message,
            **variables,
        }
        if not self._spells_control_token([messages, tools, dict(variables)]):
            prompt = self._render(messages, options)
            backend = self._pretrained.backend_tokenizer
            return token_ids_of(backend, prompt, add_special_tokens=False)
        options |= {"tokenize": True, "return_dict": False, "sanitize_control_tokens": True}
        return list(self._apply(messages, options))

    def _check(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> None:
        if not self.text:
            raise ChatTemplateError("the model has no chat template; send the prompt as text")
        if not messages:
            raise ChatTemplateError("the chat has no messages; at least 1 is needed")
        if tools and not self.takes_tools:
            raise ChatTemplateError("the model's chat template takes no tools")
        has_parts = any(isinstance(message["content"], list) for message in messages)
        if has_parts and not self.takes_content_parts:
            raise ChatTemplateError(
                "the model's chat template takes no content parts; send content as one text"
            )
        reserved = variables.keys() & (_RESERVED_NAMES | self._pretrained.special_tokens_map.keys())
        if reserved:
            raise ChatTemplateError(f"chat_template_kwargs must not hold {sorted(reserved)[0]!r}")

    def _render(self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> str:
        return str(self._apply(messages, {"tokenize": False, **options}))

    def _apply(self, messages: Sequence[Mapping[str, Any]], options: dict[str, Any]) -> Any:
        conversation = [dict(message) for message in messages]
        try:
            return self._pretrained.apply_chat_template(conversation, **options)
        except (jinja2.TemplateError, TypeError) as error:
            raise ChatTemplateError(
                f"the model's chat template refused the messages: {error}"
            ) from error
        except ValueError as error:
            if not str(error).startswith("continue_final_message"):
                raise
            reason = str(error).split("Final message to continue")[0]
            raise ChatTemplateError(reason) from error

    def _spells_control_token(self, value: Any, depth: int = 0) -> bool:
        """Whether text anywhere in the value looks like a control token.

        Raises:
            ChatTemplateError: the name of a member does, which could not be told apart; or the
                value is nested too deep.
        """
        if depth > MAX_DEPTH:
            raise ChatTemplateError(f"JSON may be nested {MAX_DEPTH} deep at most")
        if isinstance(value, str):
            return self._control_text.search(value) is not None
        if isinstance(value, Mapping):
            for key in value:
                if self._control_text.search(str(key)):
                    raise ChatTemplateError(f"a member's name spells a control token: {key!r}")
            return any([self._spells_control_token(member, depth + 1) for member in value.values()])
        if isinstance(value, Sequence):
            return any([self._spells_control_token(member, depth + 1) for member in value])
        return False
