"""Text of one sample: its tokens in, what a caller may see out.

token ids --> detokenizer --> stop matcher --> TextDelta
"""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.sampling_params import SamplingParams
from octavo.text.stop_matcher import StopMatcher
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str  # may lag behind the tokens
    token_ids: tuple[int, ...]  # each token once; ends with the one that completed a stop string
    matched_stop: str | None = None


class TextOutput:
    """Detokenizes one sample and cuts it at its first stop string.

    The text is that of all tokens, the one that ended the output included; an end-of-sequence token
    is hidden because it is special, unless `skip_special_tokens` is false. No stop string may end
    in the text of the first `min_tokens` tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        shown: Sequence[str] = (),
    ) -> None:
        """shown: special tokens that are text even where the others are skipped."""
        self._detokenizer = tokenizer.detokenizer(
            prompt_token_ids, sampling.skip_special_tokens, shown
        )
        self._has_stops = bool(sampling.stop)
        self._matcher = StopMatcher(sampling.stop, sampling.include_stop_text)
        self._min_tokens = sampling.min_tokens
        self._num_tokens = 0
        self.matched_stop: str | None = None

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Take the next tokens; what follows a stop string, tokens and text, is dropped."""
        if self.matched_stop is not None:
            return TextDelta("", (), self.matched_stop)
        if not self._has_stops:
            return TextDelta(self._detokenizer.push_all(token_ids), tuple(token_ids))
        pieces = []
        for count, token_id in enumerate(token_ids, start=1):
            text = self._detokenizer.push(token_id)
            self._num_tokens += 1
            if self._num_tokens <= self._min_tokens:
                pieces.append(self._matcher.push_unstoppable(text))
                continue
            text, self.matched_stop = self._matcher.push(text)
            pieces.append(text)
            if self.matched_stop is not None:
                return TextDelta("".join(pieces), tuple(token_ids[:count]), self.matched_stop)
        return TextDelta("".join(pieces), tuple(token_ids))

    def finish(self) -> str:
        """Return the text still held when the output ended; nothing after a stop string.

        Characters cut short can complete a stop string here; then `matched_stop` says so.
        """
        if self.matched_stop is not None:
            return ""
        if self._num_tokens <= self._min_tokens:
            text = self._matcher.push_unstoppable(self._detokenizer.flush())
            return text + self._matcher.flush()
        text, self.matched_stop = self._matcher.push(self._detokenizer.flush())
        return text if self.matched_stop is not None else text + self._matcher.flush()
