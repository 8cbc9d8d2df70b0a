"""What of a prompt can be run; router, workers and `LLM` check it here."""

# Of one prompt, its likeliest tokens included: they come in one message.
MAX_PROMPT_LOGPROBS = 1_000_000


def check_prompt_logprobs(num_prompt_tokens: int, num_top: int | None) -> None:
    """Raise ValueError if the log-probabilities of a prompt are too many for a message."""
    count = 0 if num_top is None else num_prompt_tokens * (num_top + 1)
    if count > MAX_PROMPT_LOGPROBS:
        raise ValueError(
            f"prompt_logprobs {num_top} of {num_prompt_tokens} tokens are {count} "
            f"log-probabilities, at most {MAX_PROMPT_LOGPROBS}"
        )


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
