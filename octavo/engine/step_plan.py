"""What one step will compute: decode rows first, prefill chunks after them."""

from dataclasses import dataclass, field
from operator import attrgetter

from octavo.engine.choice import PromptScore
from octavo.engine.sequence import Sequence

_ADAPTER = attrgetter("adapter")  # asked of every row of every step


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next num_tokens tokens of a sequence that is more than one token behind."""

    seq: Sequence
    num_tokens: int
    # Positions among them whose logits give log-probabilities of prompt tokens.
    prompt_rows: range = range(0)


@dataclass(slots=True)
class StepPlan:
    """Rows of one step; `sampled` are the sequences whose newest known token is among them."""

    decodes: list[Sequence] = field(default_factory=list)  # one token each
    chunks: list[Chunk] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)  # decodes, then finishing chunks
    scored: list[Chunk] = field(default_factory=list)  # those with prompt_rows
    prompt_scores: list[PromptScore] = field(default_factory=list)  # of scored, once executed

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_seqs(self) -> int:
        return len(self.decodes) + len(self.chunks)

    @property
    def has_adapters(self) -> bool:
        """Whether any row goes through an adapter."""
        return any(map(_ADAPTER, self.decodes)) or any(chunk.seq.adapter for chunk in self.chunks)

    @property
    def num_prompt_rows(self) -> int:
        return sum(len(chunk.prompt_rows) for chunk in self.scored)

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        if chunk.prompt_rows:
            self.scored.append(chunk)

    def close(self) -> None:
        """Fix the order of the sampled sequences once every row is planned."""
        self.sampled = self.decodes + [
            chunk.seq for chunk in self.chunks if chunk.num_tokens == chunk.seq.num_missing_tokens
        ]
