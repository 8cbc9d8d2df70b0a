"""One sequence as the engine sees it: its tokens, its block table and how far it got.

WAITING --admit--> RUNNING --last token--> FINISHED
   |                 ^  |
   |  (pulled)       |  +--out of blocks--> PREEMPTED --readmit--> RUNNING
   +--admit--> FILLING --join--^
"""

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from octavo.block_key import BlockKey
from octavo.engine.adapter import Adapter
from octavo.engine.beam_state import Beam, BeamCandidates, BeamState
from octavo.engine.philox import sample_seed
from octavo.engine.prompt_lookup import PromptLookup
from octavo.engine.sequence_rules import SequenceRules, has_rules
from octavo.grammar.matcher import Grammar
from octavo.sampling_params import SamplingParams
from octavo.token_logprobs import TokenLogprobs


class FinishReason(Enum):
    """Why a sequence ended; a cancelled one just ends."""

    STOP = auto()  # an end-of-sequence token, or one of stop_token_ids
    LENGTH = auto()  # max_tokens


class Status(Enum):
    WAITING = auto()
    FILLING = auto()  # blocks reserved, KV on its way from a prefill worker
    RUNNING = auto()
    PREEMPTED = auto()  # blocks given up; KV is in host memory or will be computed again
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one sample; owned by the engine thread once added to the scheduler."""

    seq_id: str  # of its request; its samples share it
    token_ids: list[int]  # prompt and, from num_prompt_tokens on, output
    num_prompt_tokens: int
    sampling: SamplingParams  # sampling.seed is set
    group_key: bytes
    sample_index: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None  # of sampling.constraint
    # KV of the prompt comes from a prefill worker: admission ends in FILLING, `join` makes it run.
    is_pulled: bool = False
    # Blocks stay held after the last token until the scheduler's `release`. Its siblings hold none:
    # of several samples only the first tokens are wanted here.
    is_leased: bool = False
    adapter: Adapter | None = None

    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    block_ids: list[int] = field(default_factory=list)  # the block table
    block_keys: list[BlockKey] = field(default_factory=list)  # of the leading full blocks
    num_computed_tokens: int = 0  # tokens whose KV is in the cache
    num_cached_tokens: int = 0  # prompt tokens found in the cache at the first admission
    admitted_at: float = 0.0  # time.monotonic() of the first admission
    num_preemptions: int = 0

    arrival: int = 0  # order of Scheduler.add
    root_key: BlockKey = BlockKey(b"")  # parent of the first block; set by Scheduler.add
    num_registered_blocks: int = 0  # leading blocks of the table that the prefix cache can find
    # Duplicates taken out of a leased sequence's table that a reader may still look at.
    retired_block_ids: list[int] = field(default_factory=list)
    is_announced: bool = False  # an output has told num_cached_tokens
    num_scored_rows: int = 0  # leading prompt tokens after which prompt_logprobs were told
    # Samples of its request that will have this prompt's blocks, once it is computed (samples.py).
    num_siblings: int = field(init=False)
    draw_seed: int = field(init=False)
    beams: BeamState | None = None  # the search that this sequence is a beam of
    lookup: PromptLookup | None = None  # its guesses, once any were looked for
    has_rules: bool = field(init=False)  # its logits are changed before a token is chosen
    is_plain: bool = field(init=False)  # nothing but a token of its own logits is wanted
    _rules: SequenceRules | None = None
    _packed_table: npt.NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        self.num_siblings = self.sampling.num_rows - 1 if self.sample_index == 0 else 0
        if self.sampling.beam_search is not None and self.beams is None:
            self.beams = BeamState(self.sampling, self.eos_token_ids)
        self.draw_seed = sample_seed(self.sampling.seed or 0, self.sample_index)
        self.has_rules = has_rules(self.sampling)
        self.is_plain = not self.has_rules and self.sampling.logprobs is None and self.beams is None

    @property
    def rules(self) -> SequenceRules:
        """Made when they are first needed, of every token known by then."""
        if self._rules is None:
            self._rules = SequenceRules(
                self.sampling,
                self.token_ids,
                self.num_prompt_tokens,
                self.eos_token_ids,
                self.grammar,
            )
        return self._rules

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def newest_token_id(self) -> int:
        return self.token_ids[-1]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_missing_tokens(self) -> int:
        """Known tokens whose KV is not in the cache; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_unscored_rows(self) -> int:
        """Prompt tokens, the last one left out, after which logits are still wanted."""
        if self.sampling.prompt_logprobs is None:
            return 0
        return self.num_prompt_tokens - 1 - self.num_scored_rows

    @property
    def packed_table(self) -> npt.NDArray[np.int32]:
        """The block table as an array, made again only after a change."""
        if self._packed_table is None:
            self._packed_table = np.array(self.block_ids, dtype=np.int32)
        return self._packed_table

    def computed_blocks(self, block_size: int) -> list[int]:
        """The leading blocks of the table that hold KV."""
        return self.block_ids[: -(-self.num_computed_tokens // block_size)]

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_rows(self) -> int:
        """Decode rows that this sequence and its siblings to come will take."""
        return 1 if self.is_leased else 1 + self.num_siblings

    @property
    def num_ends(self) -> int:
        """Outputs with a finish reason that it and its siblings will have."""
        return 1 if self.is_leased and self.beams is not None else self.sampling.num_samples

    def siblings(self) -> list["Sequence"]:
        """The other samples of its request, without blocks, as they are once all its known tokens
        are computed."""
        return [self._sibling(index) for index in range(1, 1 + self.num_siblings)]

    def _sibling(self, sample_index: int) -> "Sequence":
        return Sequence(
            seq_id=self.seq_id,
            token_ids=list(self.token_ids),
            num_prompt_tokens=self.num_prompt_tokens,
            sampling=self.sampling,
            group_key=self.group_key,
            sample_index=sample_index,
            eos_token_ids=self.eos_token_ids,
            grammar=self.grammar,
            adapter=self.adapter,
            status=Status.RUNNING,
            block_keys=list(self.block_keys),
            num_computed_tokens=self.num_tokens,
            num_cached_tokens=self.num_cached_tokens,
            admitted_at=self.admitted_at,
            arrival=self.arrival,
            root_key=self.root_key,
            is_announced=True,
            num_scored_rows=self.num_scored_rows,
            beams=self.beams,
        )

    def add_blocks(self, block_ids: list[int]) -> None:
        self.block_ids += block_ids
        self._packed_table = None

    def replace_block(self, index: int, block_id: int) -> None:
        self.block_ids[index] = block_id
        self._packed_table = None

    def drop_blocks(self, num_kept: int) -> list[int]:
        """Shorten the table to num_kept blocks and return those that left it."""
        dropped = self.block_ids[num_kept:]
        if dropped:
            del self.block_ids[num_kept:]
            self._packed_table = None
        return dropped

    def take_blocks(self) -> list[int]:
        """Empty the table and return what it held."""
        block_ids, self.block_ids = self.block_ids, []
        self.num_registered_blocks = 0
        self._packed_table = None
        return block_ids

    def restart(self) -> None:
        """Begin again behind the prompt, as the first beam of a new search."""
        del self.token_ids[self.num_prompt_tokens :]
        self.num_computed_tokens = 0
        self.block_keys = []
        self._rules = None
        self.beams = BeamState(self.sampling, self.eos_token_ids)
        self.num_siblings = self.sampling.num_rows - 1

    def follow(self, token_ids: list[int], block_keys: list[BlockKey], token_id: int) -> None:
        """Go on from another beam's tokens, with one more."""
        self.token_ids = [*token_ids, token_id]
        self.block_keys = list(block_keys)
        self._rules = None

    def append(self, token_id: int) -> None:
        """Add a sampled token and see whether it ends the sequence."""
        sampling = self.sampling
        self.token_ids.append(token_id)
        if self._rules is not None:
            self._rules.add(token_id)
        if token_id in sampling.stop_token_ids or (
            token_id in self.eos_token_ids and not sampling.ignore_eos
        ):
            self.finish_reason = FinishReason.STOP
        elif self.num_output_tokens >= sampling.max_tokens:
            self.finish_reason = FinishReason.LENGTH


@dataclass(slots=True)  # not frozen: making one takes a third of the time
class SequenceOutput:
    """What one step (or one admission) did for one sequence."""

    seq_id: str
    num_computed_tokens: int
    token_ids: tuple[int, ...] = ()  # new ones of a sample, in order
    first_index: int = 0  # of token_ids[0] among the output tokens
    finish_reason: FinishReason | None = None
    # The block table as it stands now, for sequences that are filling or leased.
    block_ids: tuple[int, ...] = ()
    # Set on a sequence's first output: prompt tokens found in the cache at its first admission.
    num_cached_tokens: int | None = None
    # The sequence ended without a finish reason because of this; streams raise it.
    error: Exception | None = None
    logprobs: TokenLogprobs | None = None  # of token_ids, if asked for
    # Of consecutive prompt tokens from index first_prompt_index on, if asked for.
    prompt_logprobs: TokenLogprobs | None = None
    first_prompt_index: int = 0
    sample_index: int = 0
    beam: Beam | None = None  # whose tokens these are, all of them
    candidates: BeamCandidates | None = None  # first ones, for whoever leads the search
