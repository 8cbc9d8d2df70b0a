"""Compiles constraints for one model, under the library's own limits."""

from octavo.grammar.constraint import Constraint
from octavo.grammar.matcher import Grammar, Masks
from octavo.grammar.source import compile_source, source_of
from octavo.grammar.vocabulary import NoGrammars, Vocabulary


class Compiler:
    """Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._masks: Masks | None = None

    def prepare(self) -> None:
        """Make now what the first grammar would have to wait for.

        Raises:
            NoGrammars: none can be compiled for this model.
        """
        if self._masks is None:
            self._masks = Masks(self._vocabulary.tokenizer.vocab_size)

    def compile(self, constraint: Constraint, source: str | None = None) -> Grammar:
        """source: the constraint in the library's form, if that is known.

        Raises:
            ValueError: it cannot be compiled; the message begins with the field.
        """
        try:
            self.prepare()
        except NoGrammars as error:
            raise ValueError(f"{constraint.field} cannot be used: {error}") from error
        assert self._masks is not None
        if source is None:
            source = source_of(constraint)
        matcher = compile_source(source, self._vocabulary.tokenizer, constraint.field)
        return Grammar(matcher, self._masks)
