"""How a request wants its tokens chosen; router, workers and `LLM` check it here."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.grammar.constraint import FIELDS, Constraint, check_constraint

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_BYTES = 256
MAX_BAD_WORDS_IDS = 1024
MAX_BAD_WORD_TOKENS = 512
MAX_ALLOWED_TOKEN_IDS = 65536
MAX_LOGPROBS = 20
MAX_SAMPLES = 128
MAX_BEAMS = 16
MAX_LENGTH_PENALTY = 10.0
GREEDY_BELOW = 1e-5

_RANGES = (
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 1e-3, 1e3),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
    ("n", 1, MAX_SAMPLES),
    ("best_of", 1, MAX_SAMPLES),
)
_BESIDE_BEAMS = "has no meaning beside beam_search"
_UNSET_BESIDE_BEAMS: dict[str, tuple[object, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "seed": (None,),
    "best_of": (None,),
    "logprobs": (None,),
    "stop": ((),),
}
_LISTS = ("stop", "stop_token_ids", "bad_words", "bad_words_ids", "allowed_token_ids", "choice")


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Fields and ranges as in `octavo.inference.v1.BeamSearch`; what they do is what `transformers`
    does with num_beams, length_penalty and early_stopping.

    Raises:
        ValueError: a field is out of range; the message begins with beam_search.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_BEAMS:
            raise _out_of_range("beam_search.width", self.width, 1, MAX_BEAMS)
        penalty, limit = self.length_penalty, MAX_LENGTH_PENALTY
        if not -limit <= penalty <= limit:
            raise _out_of_range("beam_search.length_penalty", penalty, -limit, limit)
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(
                "beam_search.early_stopping must be true, false or 'never', "
                f"got {self.early_stopping!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Fields and ranges as in `octavo.inference.v1.SamplingParams` and `OutputOptions`.

    Raises:
        ValueError: a field is out of range; the message names the field and the limit.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    bad_words: tuple[str, ...] = ()  # texts, until a tokenizer made bad_words_ids of them
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_text: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None  # None: n
    beam_search: BeamSearch | None = None
    prompt_lookup: bool | None = None  # None: where it pays
    # What the output must be; at most one.
    json_schema: str | Mapping[str, Any] | None = None  # frozen: its JSON
    regex: str | None = None
    ebnf_grammar: str | None = None
    choice: tuple[str, ...] = ()
    json_object: bool = False

    def __post_init__(self) -> None:
        self._freeze()
        if not 1 <= self.max_tokens < 2**31:
            raise ValueError(f"max_tokens must be 1 to {2**31 - 1}, got {self.max_tokens}")
        if not 0.0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and not negative, got {self.temperature}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                f"min_tokens must be 0 to max_tokens, {self.max_tokens}, got {self.min_tokens}"
            )
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is neither
                raise _out_of_range(name, value, low, high)
        if self.top_k < -1:
            raise ValueError(f"top_k must be -1 (off), 0 (off) or positive, got {self.top_k}")
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of must be at least n, {self.n}, got {self.best_of}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be 0 to {2**64 - 1}, got {self.seed}")
        if self.beam_search is not None:
            self._check_beams(self.beam_search)
        if self.stop or self.stop_token_ids:
            self._check_stops()
        if self.logit_bias or self.bad_words or self.bad_words_ids or self.allowed_token_ids:
            self._check_tokens()
        if given := self._constraints():
            check_constraint(given)
            if self.ignore_eos:
                end = "which ends with an end-of-sequence token"
                raise ValueError(f"ignore_eos must be false beside {next(iter(given))}, {end}")

    def _freeze(self) -> None:
        """Callers of LLM write lists; the frozen value holds tuples."""
        for name in _LISTS:
            value = getattr(self, name)
            if type(value) is not tuple:
                value = (value,) if isinstance(value, str) else tuple(value)
                object.__setattr__(self, name, value)
        if self.bad_words_ids:
            object.__setattr__(self, "bad_words_ids", tuple(map(tuple, self.bad_words_ids)))
        if self.logit_bias:
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", _json(self.json_schema))

    def _check_beams(self, beams: BeamSearch) -> None:
        """What makes no sense where tokens are not sampled, and text is known at the end alone."""
        if self.n > beams.width:
            raise ValueError(f"n must be at most beam_search.width, {beams.width}, got {self.n}")
        if self.temperature not in (0.0, 1.0):
            raise ValueError(f"temperature {_BESIDE_BEAMS}: it must be 0 or left out")
        for name, unset in _UNSET_BESIDE_BEAMS.items():
            if getattr(self, name) not in unset:
                raise ValueError(f"{name} {_BESIDE_BEAMS}")
        for name in self._constraints():
            raise ValueError(f"{name} {_BESIDE_BEAMS}")

    def _check_stops(self) -> None:
        _check_texts("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_STRING_BYTES)
        _check_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)

    def _check_tokens(self) -> None:
        _check_ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        _check_ids("logit_bias", self.logit_bias, MAX_LOGIT_BIASES)
        for bias in self.logit_bias.values():
            if not -100.0 <= bias <= 100.0:
                raise _out_of_range("logit_bias", bias, -100.0, 100.0)
        _check_texts("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_BYTES)
        _check_count("bad_words_ids", len(self.bad_words_ids), MAX_BAD_WORDS_IDS, "sequences")
        for token_ids in self.bad_words_ids:
            if not token_ids:
                raise ValueError("bad_words_ids holds an empty sequence; each needs 1 id or more")
            _check_ids("bad_words_ids", token_ids, MAX_BAD_WORD_TOKENS)

    @property
    def num_rows(self) -> int:
        """Sequences that run: samples, or beams."""
        return self.num_samples if self.beam_search is None else self.beam_search.width

    @property
    def num_samples(self) -> int:
        """Outputs that a worker gives: samples, or the best beams."""
        return self.n if self.best_of is None else self.best_of

    @property
    def chooses_best(self) -> bool:
        """Whether more samples run than are returned."""
        return self.num_samples > self.n

    @property
    def computed_logprobs(self) -> int | None:
        """`logprobs`, or what choosing the best samples needs."""
        return 0 if self.logprobs is None and self.chooses_best else self.logprobs

    @property
    def constraint(self) -> Constraint | None:
        """What the output must be, if anything is asked for."""
        for name, value in self._constraints().items():
            return Constraint.of(name, value)
        return None

    def _constraints(self) -> dict[str, object]:
        """The fields among FIELDS that are set; an empty text is, and will be refused."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {name: value for name, value in values.items() if value or value == ""}

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn but the most likely token, or the most likely beams."""
        return (
            self.beam_search is not None
            or self.temperature < GREEDY_BELOW
            or self.top_k == 1
            or self.top_p == 0.0
            or self.min_p == 1.0
        )

    def end_token_ids(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """Tokens that end an output once min_tokens are there."""
        eos = frozenset() if self.ignore_eos else frozenset(eos_token_ids)
        return eos | frozenset(self.stop_token_ids)

    def check_vocabulary(self, vocab_size: int, eos_token_ids: Iterable[int] = ()) -> None:
        """Raise ValueError if a field names a token the model has not, or no token is left."""
        named: dict[str, Iterable[int]] = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids,
            "bad_words_ids": (i for token_ids in self.bad_words_ids for i in token_ids),
        }
        for name, token_ids in named.items():
            highest = max(token_ids, default=0)
            if highest >= vocab_size:
                raise ValueError(
                    f"{name} must be below the vocabulary size {vocab_size}, got {highest}"
                )
        self._check_choice(vocab_size, eos_token_ids)

    def _check_choice(self, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        banned = {token_ids[0] for token_ids in self.bad_words_ids if len(token_ids) == 1}
        if self.min_tokens:
            banned |= self.end_token_ids(eos_token_ids)
        if self.allowed_token_ids and banned.issuperset(self.allowed_token_ids):
            why = "bad_words or min_tokens rule out every one of them"
            raise ValueError(f"allowed_token_ids leaves no token to choose: {why}")
        if len(banned) >= vocab_size:
            raise ValueError("bad_words_ids leaves no token to choose: every one is ruled out")


def _json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"json_schema cannot be written as JSON: {error}") from error


def _out_of_range(name: str, value: float, low: float, high: float) -> ValueError:
    return ValueError(f"{name} must be {low:g} to {high:g}, got {value}")


def _check_count(name: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise ValueError(f"{name} has {count} {what}, at most {limit}")


def _check_texts(name: str, texts: tuple[str, ...], max_count: int, max_bytes: int) -> None:
    _check_count(name, len(texts), max_count, "strings")
    for text in texts:
        num_bytes = len(text.encode())
        if not 1 <= num_bytes <= max_bytes:
            raise ValueError(f"{name} strings must have 1 to {max_bytes} bytes, got {num_bytes}")


def _check_ids(name: str, token_ids: Iterable[int], max_count: int) -> None:
    token_ids = tuple(token_ids)
    _check_count(name, len(token_ids), max_count, "ids")
    lowest = min(token_ids, default=0)
    if lowest < 0:
        raise ValueError(f"{name} must not be negative, got {lowest}")
