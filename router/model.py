"""The model a router serves, as far as it needs it: tokenizer, limits, defaults. No weights."""

from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoint.config import load_config
from octavo.checkpoint.fingerprint import model_fingerprint
from octavo.checkpoint.generation import load_generation_defaults
from octavo.checkpoint.resolve import resolve_model
from octavo.sampling_params import SamplingParams
from octavo.text.tokenizer import Tokenizer
from octavo.text.tool_calls import AUTO, ToolCallFormat, choose_format


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Static facts about the one model of a router."""

    name: str
    tokenizer: Tokenizer
    vocab_size: int
    max_context_tokens: int  # by its positions; workers may have less
    eos_token_ids: tuple[int, ...]
    sampling_defaults: dict[str, float | int]  # of generation_config.json
    # None when the folder has no weights, as a router needs none.
    fingerprint: str | None
    tool_call_format: ToolCallFormat | None = None  # None: calls stay text

    @classmethod
    def load(cls, model: str, served_name: str, tool_call_format: str = AUTO) -> "ServedModel":
        """Fetch or convert a model if need be, and read it.

        Raises:
            CheckpointError: there is no such model, or it cannot be served.
            ValueError: its tokenizer or its generation defaults cannot be used.
        """
        path = resolve_model(model)
        config = load_config(path)
        defaults = _sampling_defaults(path)
        SamplingParams(**defaults)  # type: ignore[arg-type]  # wrong values end the start, not a request
        tokenizer = Tokenizer.load(path)
        return cls(
            name=served_name,
            tokenizer=tokenizer,
            vocab_size=config.vocab_size,
            max_context_tokens=config.max_position_embeddings,
            eos_token_ids=config.eos_token_ids,
            sampling_defaults=defaults,
            fingerprint=model_fingerprint(path) if _has_weights(path) else None,
            tool_call_format=choose_format(tool_call_format, tokenizer.chat_template.text),
        )


def _has_weights(path: Path) -> bool:
    return any(path.glob("*.safetensors"))


def _sampling_defaults(path: Path) -> dict[str, float | int]:
    found = load_generation_defaults(path)
    values: dict[str, float | int | None] = {
        "temperature": found.temperature,
        "top_p": found.top_p,
        "top_k": found.top_k,
        "min_p": found.min_p,
        "repetition_penalty": found.repetition_penalty,
    }
    return {name: value for name, value in values.items() if value is not None}
