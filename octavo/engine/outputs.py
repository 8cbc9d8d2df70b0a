"""What a scheduler has to tell of its sequences, in the order in which it happened."""

from dataclasses import replace

from octavo.engine.beam_state import Beam, BeamCandidates
from octavo.engine.sequence import FinishReason, Sequence, SequenceOutput, Status
from octavo.token_logprobs import TokenLogprobs, joined


class Outputs:
    """Those not told yet."""

    def __init__(self) -> None:
        self._untold: list[SequenceOutput] = []

    def __len__(self) -> int:
        return len(self._untold)

    def drain(self) -> list[SequenceOutput]:
        """What came since the last call."""
        untold, self._untold = self._untold, []
        return untold

    def tell(
        self,
        seq: Sequence,
        token_ids: tuple[int, ...] = (),
        first_index: int = 0,
        logprobs: TokenLogprobs | None = None,
    ) -> None:
        """How far a sequence got, and its new tokens."""
        is_first, seq.is_announced = not seq.is_announced, True
        shows_blocks = seq.is_leased or seq.status is Status.FILLING
        output = SequenceOutput(
            seq.seq_id,
            seq.num_computed_tokens,
            token_ids,
            first_index,
            seq.finish_reason,
            tuple(seq.block_ids) if shows_blocks else (),
            seq.num_cached_tokens if is_first else None,
            logprobs=logprobs,
            sample_index=seq.sample_index,
        )
        self._untold.append(output)

    def tell_beam(self, seq: Sequence, index: int, beam: Beam) -> None:
        """One of the best beams of a search that has ended."""
        reason = FinishReason.STOP if beam.has_stopped else FinishReason.LENGTH
        self._untold.append(
            SequenceOutput(
                seq.seq_id,
                seq.num_computed_tokens,
                beam.token_ids,
                finish_reason=reason,
                sample_index=index,
                beam=beam,
            )
        )

    def tell_candidates(self, seq: Sequence, candidates: BeamCandidates) -> None:
        """The prompt is computed; another engine goes on with the search."""
        self.tell(seq)
        self._untold[-1] = replace(
            self._untold[-1], finish_reason=FinishReason.LENGTH, candidates=candidates
        )

    def join(self) -> None:
        """Make one output of all that each sequence was told of new tokens."""
        untold: list[SequenceOutput] = []
        with_tokens: dict[tuple[str, int], SequenceOutput] = {}
        for output in self._untold:
            sample = output.seq_id, output.sample_index
            earlier = with_tokens.get(sample)
            if output.token_ids and earlier is not None:
                _extend(earlier, output)
                continue
            untold.append(output)
            if output.token_ids:
                with_tokens[sample] = output
        self._untold = untold

    def tell_score(self, seq: Sequence, score: TokenLogprobs) -> None:
        """Prompt tokens' log-probabilities, each once, whatever is computed again later."""
        first = seq.num_scored_rows + 1
        seq.num_scored_rows += len(score)
        self.tell(seq)
        self._untold[-1] = replace(
            self._untold[-1], prompt_logprobs=score, first_prompt_index=first
        )

    def tell_error(self, seq: Sequence, error: Exception) -> None:
        """The sequence ended because of this."""
        self._untold.append(SequenceOutput(seq.seq_id, seq.num_computed_tokens, error=error))


def _extend(output: SequenceOutput, later: SequenceOutput) -> None:
    """Add the tokens that came next."""
    output.token_ids += later.token_ids
    output.num_computed_tokens = later.num_computed_tokens
    output.finish_reason, output.block_ids = later.finish_reason, later.block_ids
    if output.logprobs is not None and later.logprobs is not None:
        output.logprobs = joined([output.logprobs, later.logprobs])
