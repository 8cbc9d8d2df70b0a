"""What a model's author recommends for sampling: generation_config.json.

Only fields that are written count, as in vLLM: an absent or null temperature stays Octavo's default
of 1.0, and do_sample is ignored (a caller who wants greedy output sets temperature 0).
"""

from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoint.fields import Fields, read_fields

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Sampling values of the model; None: the model has no opinion."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def load_generation_defaults(path: Path) -> GenerationDefaults:
    """The sampling values in the model folder's generation_config.json, if it has one."""
    fields = read_generation_fields(path)
    return GenerationDefaults(
        temperature=_optional_number(fields, "temperature"),
        top_p=_optional_number(fields, "top_p"),
        top_k=None if fields.values.get("top_k") is None else fields.integer("top_k"),
        min_p=_optional_number(fields, "min_p"),
        repetition_penalty=_optional_number(fields, "repetition_penalty"),
    )


def read_generation_fields(path: Path) -> Fields:
    """The fields of generation_config.json; none where the folder has no such file."""
    file = path / GENERATION_CONFIG
    return read_fields(file) if file.exists() else Fields({}, str(file))


def _optional_number(fields: Fields, name: str) -> float | None:
    return None if fields.values.get(name) is None else fields.number(name)
