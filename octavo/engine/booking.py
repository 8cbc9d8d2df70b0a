"""Books what a step computed: tokens to their sequences, full blocks to the cache, ends, and what
there is to tell of all that.
"""

from octavo.engine.beam_state import BeamCandidates
from octavo.engine.choice import Choice, PromptScore, ScoredToken, Token
from octavo.engine.errors import InvalidLogits
from octavo.engine.load import Counters
from octavo.engine.outputs import Outputs
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.roster import Roster
from octavo.engine.sequence import Sequence
from octavo.token_logprobs import TokenLogprobs


class Booking:
    """Owns nothing; it knows what each choice of the model means for its sequence."""

    def __init__(
        self, roster: Roster, prefix_cache: PrefixCache, outputs: Outputs, totals: Counters
    ) -> None:
        self._roster = roster
        self._prefix_cache = prefix_cache
        self._outputs = outputs
        self._totals = totals

    def advance(
        self,
        seq: Sequence,
        num_tokens: int,
        sampled: Choice | None,
        score: PromptScore | None = None,
    ) -> None:
        """So many more of its known tokens are computed.

        sampled: what was chosen after them; score: of prompt tokens among them.
        """
        num_before = seq.num_computed_tokens
        seq.num_computed_tokens += num_tokens
        num_prompt_left = seq.num_prompt_tokens - num_before
        if num_prompt_left > 0:
            self._totals.prompt_tokens_computed += min(num_tokens, num_prompt_left)
        for found in (score, sampled):
            if isinstance(found, InvalidLogits):
                self._fail(seq, found)  # and register nothing: its KV may be as bad as its logits
                return
        self._prefix_cache.settle(seq, num_before)
        if isinstance(score, TokenLogprobs):
            self._outputs.tell_score(seq, score)
        if isinstance(sampled, int):
            self._append(seq, sampled)
        elif isinstance(sampled, ScoredToken):
            self._append(seq, sampled.token_id, sampled.logprobs)
        elif isinstance(sampled, BeamCandidates):
            self.advance_beams(seq, sampled)
        elif seq.is_leased or not seq.is_announced:
            self._outputs.tell(seq)

    def begin(self, seq: Sequence, first: Token) -> None:
        """All known tokens of a sample are computed, and this is its first token."""
        self._prefix_cache.settle(seq, 0)
        self.append(seq, first)

    def append(self, seq: Sequence, token: Token) -> None:
        if isinstance(token, ScoredToken):
            self._append(seq, token.token_id, token.logprobs)
        else:
            self._append(seq, token)

    def advance_beams(self, seq: Sequence, found: BeamCandidates) -> None:
        """Take the next step of a search, of which `seq` is a beam, or the prompt."""
        if seq.is_leased:
            self._roster.finish(seq)
            self._outputs.tell_candidates(seq, found)
            return
        samples = self._roster.samples
        if seq.num_siblings:
            samples.fork(seq, seq.siblings())
        beams, search = self._roster.by_id[seq.seq_id], seq.beams
        assert search is not None
        moves = search.advance(found)
        self._totals.tokens_generated += len(moves)
        if not search.is_done:
            samples.move(beams, moves)
            return
        for index, beam in enumerate(search.results(seq.sampling.n)):
            self._outputs.tell_beam(seq, index, beam)
        for beam_seq in list(beams):
            self._roster.finish(beam_seq)

    def _append(self, seq: Sequence, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        first_index = seq.num_output_tokens
        seq.append(token_id)
        self._totals.tokens_generated += 1
        if seq.finish_reason is not None:
            self._roster.finish(seq)
        self._outputs.tell(seq, (token_id,), first_index, logprobs)

    def _fail(self, seq: Sequence, error: InvalidLogits) -> None:
        """End a sequence, and the other beams of its search."""
        for each in [seq] if seq.beams is None else list(self._roster.by_id[seq.seq_id]):
            self._roster.finish(each)
        self._outputs.tell_error(seq, error)
