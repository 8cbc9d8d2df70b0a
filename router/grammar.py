"""What an output must be: the grammar that a request brings, or that of the calls it must make.

sampling.json_schema, ... ---------------------+--> checked in a child process --> workers
chat.tool_choice, tools --> tool_call_grammar -+
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from octavo.grammar.grammars import Grammars, TooManyGrammars, checked_grammars
from octavo.grammar.tool_calls import tool_call_grammar
from octavo.inference.v1.inference_pb2 import ChatMessages
from octavo.router.chat import forced_functions
from octavo.router.model import ServedModel
from octavo.rpc.errors import InvalidRequest, Overloaded
from octavo.rpc.sampling import invalid_sampling
from octavo.sampling_params import SamplingParams

RETRY_AFTER_S = 1.0


def router_grammars(model: ServedModel) -> AbstractAsyncContextManager[Grammars[str]]:
    """Those of the served model, inside the block."""
    tokenizer = model.tokenizer
    ends = {token_id: tokenizer.token(token_id) for token_id in model.eos_token_ids}
    return checked_grammars(ends | tokenizer.special_tokens, model.eos_token_ids)


class GrammarReader:
    """Settles the grammars of one model's requests."""

    def __init__(self, model: ServedModel, grammars: Grammars[str]) -> None:
        self._model = model
        self._grammars = grammars

    async def read(self, sampling: SamplingParams, chat: ChatMessages) -> SamplingParams:
        """The sampling with the grammar that holds for it, known to compile.

        Raises:
            InvalidRequest: it does not; it names the field.
            Overloaded: too many wait to be compiled.
        """
        functions = forced_functions(chat)
        field = "chat.tool_choice_name" if chat.tool_choice_name else "chat.tool_choice"
        if functions:
            self._check_alone(sampling, field)
        try:
            if functions:
                grammar = self._of_calls(functions, field, is_one=bool(chat.tool_choice_name))
                sampling = replace(sampling, ebnf_grammar=grammar)
            if (constraint := sampling.constraint) is not None:
                await self._grammars.of(constraint)
        except ValueError as error:
            if functions:
                raise InvalidRequest("chat.tools", f"chat.tools: {error}") from error
            raise invalid_sampling(error) from error
        except TooManyGrammars as error:
            raise Overloaded(str(error), RETRY_AFTER_S) from error
        return sampling

    def _check_alone(self, sampling: SamplingParams, field: str) -> None:
        if sampling.constraint is not None:
            beside = f"sampling.{sampling.constraint.field}"
            raise InvalidRequest(field, f"{field} cannot be set beside {beside}")
        if sampling.ignore_eos:
            raise InvalidRequest(
                "sampling.ignore_eos", f"sampling.ignore_eos must be false beside {field}"
            )

    def _of_calls(self, functions: list[dict[str, object]], field: str, *, is_one: bool) -> str:
        format = self._model.tool_call_format
        if format is None:
            raise InvalidRequest(
                field, f"{field} needs a model whose way of writing tool calls is known"
            )
        special_tokens = self._model.tokenizer.special_tokens
        return tool_call_grammar(format, functions, special_tokens, is_one=is_one)
