"""Log-probabilities of one request, as its workers tell them.

    Prefill leg: prompt, chunk by chunk; token 0 --+
                                                   +--> Scores --> Prompt, Delta, Delta, ...
    Decode leg:  tokens 0 1 2 ... -----------------+

Both legs tell those of token 0; they are the same, and the first to come are kept.
"""

from octavo.inference.v1 import inference_pb2
from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.errors import DataLoss
from octavo.rpc.logprobs import logprobs_from_proto
from octavo.token_logprobs import TokenLogprobs, joined


class Scores:
    """Kept for a request that asks for them."""

    def __init__(self, num_prompt_tokens: int, *, wants_tokens: bool, wants_prompt: bool) -> None:
        self.wants_tokens = wants_tokens
        self.wants_prompt = wants_prompt
        self._num_prompt_tokens = num_prompt_tokens
        self._prompt: list[TokenLogprobs] = []
        self._num_prompt_scores = 0
        # By sample and output index, one token each.
        self._tokens: dict[tuple[int, int], TokenLogprobs] = {}

    @property
    def has_prompt(self) -> bool:
        """Whether all that is wanted of the prompt has come."""
        return not self.wants_prompt or self._num_prompt_scores == self._num_prompt_tokens - 1

    @property
    def prompt(self) -> TokenLogprobs | None:
        """Of every prompt token but the first; None if they are not wanted."""
        if not self.wants_prompt:
            return None
        return joined(self._prompt) if self._prompt else TokenLogprobs(())

    def take_prompt(self, message: worker_pb2.PromptLogprobs) -> None:
        """Of further prompt tokens, in order; another attempt tells the first ones again."""
        num_known = self._num_prompt_scores + 1 - message.first_index
        if num_known < 0:
            raise DataLoss(
                f"log-probabilities from prompt token {message.first_index} on came where "
                f"{self._num_prompt_scores + 1} was due"
            )
        told = _read(message.logprobs)
        scores = told.part(num_known, len(told))
        self._prompt.append(scores)
        self._num_prompt_scores += len(scores)

    def take_tokens(self, delta: worker_pb2.TokenDelta) -> None:
        """Of the tokens of a delta, of either leg."""
        if not self.wants_tokens:
            return
        scores = _read(delta.logprobs)
        if len(scores) != len(delta.token_ids):
            raise DataLoss(f"{len(delta.token_ids)} tokens with {len(scores)} log-probabilities")
        for place in range(len(scores)):
            index = delta.first_index + place
            self._tokens.setdefault((delta.sample, index), scores.part(place, place + 1))

    def tokens(self, sample: int, start: int, stop: int) -> TokenLogprobs | None:
        """Of a sample's output tokens start .. stop - 1; None if there are none, or they are not
        wanted."""
        if not self.wants_tokens or start == stop:
            return None
        return joined([self._tokens[sample, index] for index in range(start, stop)])


def _read(message: inference_pb2.TokenLogprobs) -> TokenLogprobs:
    try:
        return logprobs_from_proto(message)
    except ValueError as error:
        raise DataLoss(f"log-probabilities cannot be used: {error}") from error
