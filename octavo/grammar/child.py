"""Compiles grammars for another process, which is thus safe from what compiling them may do.

    parent --{"special_tokens", "eos_token_ids"}, then {"field", "text"} a line--> child
           <------------------------------- {"source"} or {"error"} a line--

Run as `python -m octavo.grammar.child`. A grammar that takes too long or too much memory ends the
child; so does the end of its input. Its vocabulary is the single bytes and the special tokens, at
their own ids: whether a grammar compiles, and how large it gets, depends on no other token.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from octavo.grammar.constraint import Constraint
from octavo.grammar.source import compile_source, source_of

TIME_LIMIT_S = 1.0
MEMORY_LIMIT_BYTES = 1 << 30
NICENESS = 5


class ByteVocabulary:
    """Single bytes and special tokens, as the library asks for a tokenizer."""

    bos_token_id = None

    def __init__(self, specials: Mapping[int, str], eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.special_token_ids = sorted(specials)
        num_tokens = max(specials, default=0) + 257
        free = [i for i in range(num_tokens) if i not in specials][:256]
        self.tokens = [b""] * num_tokens
        for token_id, text in specials.items():
            self.tokens[token_id] = text.encode()
        for byte, token_id in enumerate(free):
            self.tokens[token_id] = bytes((byte,))
        self._ids = free

    def __call__(self, text: bytes) -> list[int]:
        return [self._ids[byte] for byte in text]


def byte_tokenizer(specials: Mapping[int, str], eos_token_ids: Sequence[int]) -> LLTokenizer:
    vocabulary = ByteVocabulary(specials, eos_token_ids[0])
    return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=list(eos_token_ids))


def main() -> None:
    """Answer every line until the input ends."""
    os.nice(NICENESS)  # steps of models come first
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's end is ours
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it computes
    start = json.loads(sys.stdin.readline())
    specials = {int(token_id): text for token_id, text in start["special_tokens"].items()}
    tokenizer = byte_tokenizer(specials, start["eos_token_ids"])
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
        answer = _answer(Constraint(**json.loads(line)), tokenizer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(answer), flush=True)


def _answer(constraint: Constraint, tokenizer: LLTokenizer) -> dict[str, str]:
    try:
        source = source_of(constraint)
        compile_source(source, tokenizer, constraint.field)
    except ValueError as error:
        return {"error": str(error)}
    except (MemoryError, RecursionError):
        return {
            "error": f"{constraint.field} is no usable grammar: it is too large or nested too deep"
        }
    return {"source": source}


if __name__ == "__main__":
    main()
