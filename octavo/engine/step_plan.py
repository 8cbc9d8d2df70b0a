"""What one step will compute: decode rows first, prefill chunks after them."""

from dataclasses import dataclass, field

from octavo.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next num_tokens tokens of a sequence that is more than one token behind."""

    seq: Sequence
    num_tokens: int


@dataclass(slots=True)
class StepPlan:
    """Rows of one step; `sampled` are the sequences whose newest known token is among them."""

    decodes: list[Sequence] = field(default_factory=list)  # one token each
    chunks: list[Chunk] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)  # decodes, then finishing chunks

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_seqs(self) -> int:
        return len(self.decodes) + len(self.chunks)

    def close(self) -> None:
        """Fix the order of the sampled sequences once every row is planned."""
        self.sampled = self.decodes + [
            chunk.seq for chunk in self.chunks if chunk.num_tokens == chunk.seq.num_missing_tokens
        ]
