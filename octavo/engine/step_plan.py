"""What one step will compute: decode rows, rows of guesses, prefill chunks."""

from dataclasses import dataclass, field
from operator import attrgetter

from octavo.engine.choice import PromptScore
from octavo.engine.draft_row import BatchRow, DraftRow
from octavo.engine.sequence import Sequence, Status

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
    """Rows of one step; `sampled` are those behind which a token is drawn.

    Behind them stand `siblings`: samples that get their first token of the same logits as the
    sequence whose prompt they share.
    """

    decodes: list[Sequence] = field(default_factory=list)  # one token each
    drafts: list[DraftRow] = field(default_factory=list)  # those of a sequence in their order
    chunks: list[Chunk] = field(default_factory=list)
    # Decodes, drafts, finishing chunks, siblings.
    sampled: list[BatchRow] = field(default_factory=list)
    siblings: list[Sequence] = field(default_factory=list)
    sibling_rows: list[int] = field(default_factory=list)  # of each, an index into sampled
    scored: list[Chunk] = field(default_factory=list)  # those with prompt_rows
    prompt_scores: list[PromptScore] = field(default_factory=list)  # of scored, once executed
    seconds: float = 0.0  # that it took, once executed

    @property
    def num_tokens(self) -> int:
        return self.num_single_rows + sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def single_rows(self) -> list[BatchRow]:
        """What has one row each, in the order of the batch."""
        return [*self.decodes, *self.drafts]

    @property
    def num_single_rows(self) -> int:
        return len(self.decodes) + len(self.drafts)

    @property
    def num_seqs(self) -> int:
        return len(self.decodes) + len(self.chunks)

    @property
    def num_sampled_rows(self) -> int:
        """Rows of logits that tokens are chosen of."""
        return len(self.sampled) - len(self.siblings)

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

    def add_siblings(self, row: int, siblings: list[Sequence]) -> None:
        """Sample these of the logits of sampled[row]; the plan is closed."""
        self.siblings += siblings
        self.sibling_rows += [row] * len(siblings)
        self.sampled += siblings

    def drop_preempted(self) -> int:
        """Take out decode rows that lost their blocks; returns how many."""
        num_planned = len(self.decodes)
        self.decodes = [seq for seq in self.decodes if seq.status is Status.RUNNING]
        return num_planned - len(self.decodes)

    def close(self) -> None:
        """Fix the order of what is sampled once every row is planned."""
        self.sampled = self.single_rows + [
            chunk.seq for chunk in self.chunks if chunk.num_tokens == chunk.seq.num_missing_tokens
        ]
