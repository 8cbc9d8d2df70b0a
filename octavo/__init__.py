"""Serves language models from separate prefill and decode workers over paged KV blocks."""

from typing import TYPE_CHECKING, Any

from octavo.sampling_params import BeamSearch, SamplingParams

if TYPE_CHECKING:
    from octavo.llm import LLM

__all__ = ["LLM", "BeamSearch", "SamplingParams"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `LLM`, and torch with it, only when it is asked for."""
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
