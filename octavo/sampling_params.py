"""How a request wants its tokens chosen; router, workers and `LLM` check it here."""

import math
from dataclasses import dataclass

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Fields and ranges as in `octavo.inference.v1.SamplingParams`.

    Raises:
        ValueError: a field is out of range; the message names the field and the limit.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_text: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        # Callers of LLM write lists; the frozen value holds tuples.
        object.__setattr__(
            self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        )
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if not 1 <= self.max_tokens < 2**31:
            raise ValueError(f"max_tokens must be 1 to {2**31 - 1}, got {self.max_tokens}")
        if not 0.0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and not negative, got {self.temperature}")
        _check_range("top_p", self.top_p, 0.0, 1.0)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        if self.top_k < -1:
            raise ValueError(f"top_k must be -1 (off), 0 (off) or positive, got {self.top_k}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be 0 to {2**64 - 1}, got {self.seed}")
        self._check_stops()

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(f"stop has {len(self.stop)} strings, at most {MAX_STOP_STRINGS}")
        for text in self.stop:
            if not 1 <= len(text.encode()) <= MAX_STOP_STRING_BYTES:
                raise ValueError(
                    f"stop strings must have 1 to {MAX_STOP_STRING_BYTES} bytes, "
                    f"got {len(text.encode())}"
                )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise ValueError(
                f"stop_token_ids has {len(self.stop_token_ids)} ids, at most {MAX_STOP_TOKEN_IDS}"
            )
        for token_id in self.stop_token_ids:
            if token_id < 0:
                raise ValueError(f"stop_token_ids must not be negative, got {token_id}")

    @property
    def is_greedy(self) -> bool:
        """Whether only the most likely token can be drawn."""
        return (
            self.temperature < GREEDY_BELOW
            or self.top_k == 1
            or self.top_p == 0.0
            or self.min_p == 1.0
        )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ValueError if a field names a token the model does not have."""
        for token_id in self.stop_token_ids:
            if token_id >= vocab_size:
                raise ValueError(
                    f"stop_token_ids must be below the vocabulary size {vocab_size}, got {token_id}"
                )


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if math.isnan(value) or not low <= value <= high:
        raise ValueError(f"{name} must be {low:g} to {high:g}, got {value}")


def check_prompt(token_ids: list[int], vocab_size: int, max_context_tokens: int) -> None:
    """Raise ValueError, naming field and limit, if a prompt cannot be run."""
    if not token_ids:
        raise ValueError("the prompt is empty; at least 1 token is needed")
    if len(token_ids) >= max_context_tokens:
        raise ValueError(
            f"the prompt has {len(token_ids)} tokens, at most {max_context_tokens - 1} fit "
            f"beside one output token in the context of {max_context_tokens}"
        )
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= vocab_size:
        bad = lowest if lowest < 0 else highest
        raise ValueError(f"token_ids must be 0 to {vocab_size - 1}, got {bad}")


def check_length(num_prompt_tokens: int, max_tokens: int, max_context_tokens: int) -> None:
    """Raise ValueError if prompt and output together exceed the context."""
    if num_prompt_tokens + max_tokens > max_context_tokens:
        raise ValueError(
            f"max_tokens {max_tokens} and a prompt of {num_prompt_tokens} tokens exceed the "
            f"context of {max_context_tokens}; at most {max_context_tokens - num_prompt_tokens} fit"
        )
