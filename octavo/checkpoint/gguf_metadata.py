"""The key-value part of a GGUF file as plain Python values."""

from typing import Any

from octavo.checkpoint.errors import CheckpointError
from octavo.checkpoint.fields import Fields

# Long lists that only the tokenizer's own reader needs.
SKIPPED = (
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
)


class GgufMetadata:
    """Fields by their full name, and those of the architecture by their short one."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.architecture = fields.string("general.architecture")

    @property
    def where(self) -> str:
        return self.fields.where

    def key(self, name: str) -> str:
        """rope.freq_base -> llama.rope.freq_base."""
        return f"{self.architecture}.{name}"

    def integer(self, name: str) -> int:
        return self.fields.integer(self.key(name))

    def optional_integer(self, name: str) -> int | None:
        key = self.key(name)
        return self.fields.integer(key) if self.fields.has(key) else None

    def optional_number(self, name: str) -> float | None:
        key = self.key(name)
        return self.fields.number(key) if self.fields.has(key) else None


def read_metadata(reader: Any, where: str) -> GgufMetadata:
    """Metadata of an open GGUFReader; raises CheckpointError where a value cannot be decoded."""
    values: dict[str, object] = {}
    for name, field in reader.fields.items():
        if name in SKIPPED:
            continue
        try:
            values[name] = field.contents()
        except (ValueError, IndexError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{where}: {name} cannot be read: {error}") from error
    return GgufMetadata(Fields(values, where))
