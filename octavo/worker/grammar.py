"""The grammar of a sequence that arrives: compiled, and followed by the output that it brings."""

from contextlib import AbstractAsyncContextManager

from octavo.checkpoint.resolve import resolve_model
from octavo.engine.engine import Engine
from octavo.grammar.grammars import CompiledGrammars, TooManyGrammars, compiled_grammars
from octavo.grammar.matcher import Grammar
from octavo.grammar.vocabulary import Vocabulary
from octavo.rpc.errors import InvalidRequest, Overloaded
from octavo.rpc.sampling import invalid_sampling
from octavo.worker.config import WorkerConfig
from octavo.worker.sequence_spec import SequenceSpec

RETRY_AFTER_S = 1.0


def worker_grammars(
    config: WorkerConfig, engine: Engine
) -> AbstractAsyncContextManager[CompiledGrammars]:
    """Those of the worker's model, inside the block."""
    model = engine.model_config
    folder = resolve_model(config.model)
    return compiled_grammars(Vocabulary.load(folder, model.vocab_size, model.eos_token_ids))


async def grammar_of(spec: SequenceSpec, grammars: CompiledGrammars) -> Grammar | None:
    """The grammar of a sequence, if it has one.

    Raises:
        InvalidRequest: it cannot be compiled, or does not allow the output that is given.
        Overloaded: too many grammars wait to be compiled.
    """
    constraint = spec.sampling.constraint
    if constraint is None:
        return None
    try:
        grammar = await grammars.of(constraint)
    except ValueError as error:
        raise invalid_sampling(error) from error
    except TooManyGrammars as error:
        raise Overloaded(str(error), RETRY_AFTER_S) from error
    given = spec.output_token_ids
    num_allowed = grammar.matcher().num_allowed(given) if given else 0
    if num_allowed < len(given):
        field = "sequence.output_token_ids"
        raise InvalidRequest(
            field, f"{field}: {constraint.field} does not allow output token {num_allowed}"
        )
    return grammar
