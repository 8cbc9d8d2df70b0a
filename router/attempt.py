"""One attempt of a request on its workers: both legs at once, one stream of tokens out.

    Prefill leg --first tokens--+
                                +--> TokenMerge of each sample --> emit --> the request's text
    Decode leg ---- 0 1 2 3 ----+

Either leg's failure ends the other. Both calls are leases: `close`, which ends the attempt for
whatever reason, cancels them and the workers free what they hold. There is no task in here: calls
say what came, and the reader looks when it likes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from octavo.inference.v1.inference_pb2 import FinishReason
from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.failures import LocalTailTooLong, leg_failure, worker_lost
from octavo.router.leg_call import LegCall
from octavo.router.merge import TokenMerge
from octavo.router.report import RunReport
from octavo.router.route import Route
from octavo.router.worker import Leg
from octavo.rpc.errors import DataLoss, RequestError

# The output is complete; so long may the workers take to say what it cost them.
SETTLE_S = 1.0


@dataclass(slots=True)  # not frozen: many are made
class NewTokens:
    """Output tokens of a sample that are next in order; UNSPECIFIED while more will come."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    sample: int = 0
    beam: tuple[float, float] | None = None  # cumulative log-probability and score, of a beam


class _Sample:
    """What came of one sample, and what is unread of it."""

    def __init__(self) -> None:
        self.merge = TokenMerge()
        self.unread: list[int] = []
        self.has_news = False
        self.is_stopped = False  # the reader wants no more
        self.beam: tuple[float, float] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the reader has, or will read, all that it wants."""
        return self.is_stopped or self.merge.is_finished


class Attempt:
    """The legs of one attempt: `open`, `take` what there is until `has_ended`, `close` at any time.

    A reader gets all tokens that are there: where it is slower than the workers they come several
    at a time. Unread are at most the request's output.
    """

    def __init__(
        self,
        route: Route,
        sequence: worker_pb2.SequenceSpec,
        report: RunReport,
        on_news: Callable[[], None],
    ) -> None:
        """on_news: called when there is something to take, and when the attempt has ended."""
        self.has_ended = False
        self.failure: Exception | None = None  # LocalTailTooLong, or what the caller should see
        self._route = route
        self._sequence = sequence
        self._report = report
        self._on_news = on_news
        self._samples = [_Sample() for _ in range(sequence.sampling.n or 1)]
        self._num_open = len(self._samples)  # those not complete
        self._has_news = False
        self._open_legs: list[_LegStream] = []
        self._decode_call: LegCall[worker_pb2.DecodeRequest] | None = None
        self._decode_has_tokens = False
        self._settling: asyncio.TimerHandle | None = None

    def open(self, timeout_s: float) -> None:
        """Call the workers; each call may last so long."""
        prefill, decode = self._route.prefill, self._route.decode
        if decode is not None:
            request = worker_pb2.DecodeRequest()
            request.start.sequence.CopyFrom(self._sequence)
            if prefill is not None:
                request.start.kv.prefill.CopyFrom(prefill.worker.ref)
            stream = _LegStream(self, decode, self._on_decode, is_alone=prefill is None)
            self._open_legs.append(stream)
            stream.call = self._decode_call = decode.worker.decode(request, timeout_s, stream)
        if prefill is not None:
            stream = _LegStream(self, prefill, self._on_prefill)
            self._open_legs.append(stream)
            stream.call = prefill.worker.prefill(
                worker_pb2.PrefillRequest(
                    sequence=self._sequence, will_be_pulled=decode is not None
                ),
                timeout_s,
                stream,
            )

    def take(self) -> list[NewTokens]:
        """Everything that is new, sample by sample."""
        if not self._has_news or self._lacks_prompt:
            return []
        self._has_news = False
        found = []
        for index, sample in enumerate(self._samples):
            if sample.has_news:
                sample.has_news = False
                token_ids, sample.unread = tuple(sample.unread), []
                reason = sample.merge.finish_reason
                found.append(NewTokens(token_ids, reason, index, sample.beam))
        return found

    def stop(self, index: int) -> None:
        """The reader needs no more tokens of a sample: the decode worker may end it."""
        sample = self._samples[index]
        if not sample.is_complete:
            sample.is_stopped = True
            self._complete_one()
        if self._decode_call is None:
            return
        if self._decode_has_tokens or not self._is_complete:
            stop = worker_pb2.DecodeRequest.Stop(samples=[index])
            self._decode_call.send(worker_pb2.DecodeRequest(stop=stop))
        else:
            self.close()  # it has not begun; its blocks are wanted by others

    def close(self) -> None:
        """End the legs that are open."""
        if self._settling is not None:
            self._settling.cancel()
        for stream in self._open_legs:
            stream.cancel()
        self._open_legs.clear()
        self._decode_call = None
        if not self.has_ended:
            self.has_ended = True
            if self._has_news and self._lacks_prompt:
                last = self._route.prefill or self._route.decode
                assert last is not None
                self.failure = worker_lost(last.worker, "told no log-probabilities of the prompt")
            self._on_news()
        self._on_news = _nobody

    def leg_ended(self, stream: "_LegStream", failure: Exception | None) -> None:
        """A leg's last word; a failure ends the other one."""
        if stream not in self._open_legs:
            return
        self._open_legs.remove(stream)
        if failure is None and self._open_legs:
            return
        if failure is None and not self._is_complete:
            failure = worker_lost(stream.leg.worker, "ended the stream before the last token")
        if not (self._is_complete and isinstance(failure, RequestError)):
            self.failure = failure
        self.close()

    def _on_prefill(self, response: worker_pb2.PrefillResponse) -> None:
        match response.WhichOneof("event"):
            case "started":
                self._report.prefill_started(response.started)
            case "token":
                was_complete = self._is_complete  # by a decode worker that was faster
                self._take(response.token)
                has_ended_it = self._is_complete and not was_complete
                if has_ended_it and self._route.decode is not None:
                    self.close()  # nothing to decode, so nothing to hand over
            case "prompt_logprobs":
                self._take_prompt(response.prompt_logprobs)
            case "completed":
                self._report.prefill_completed(response.completed)

    def _on_decode(self, response: worker_pb2.DecodeResponse) -> None:
        match response.WhichOneof("event"):
            case "tokens":
                self._decode_has_tokens = True
                self._take(response.tokens)
            case "started":
                self._report.decode_started(response.started)
            case "prompt_logprobs":
                self._take_prompt(response.prompt_logprobs)
            case "completed":
                self._report.decode_completed(response.completed)

    def _take_prompt(self, logprobs: worker_pb2.PromptLogprobs) -> None:
        scores = self._report.scores
        if scores is not None:
            scores.take_prompt(logprobs)
            if scores.has_prompt and self._has_news:
                self._on_news()  # tokens that waited for it

    @property
    def _lacks_prompt(self) -> bool:
        """Whether something of the prompt has to come before the first token is given out."""
        scores = self._report.scores
        return scores is not None and not scores.has_prompt

    @property
    def _is_complete(self) -> bool:
        """Whether the reader has, or will read, all that it wants."""
        return self._num_open == 0

    def _take(self, delta: worker_pb2.TokenDelta) -> None:
        if delta.sample >= len(self._samples):
            raise DataLoss(f"tokens of sample {delta.sample} came, of {len(self._samples)}")
        sample = self._samples[delta.sample]
        if sample.is_complete:
            return
        if self._report.scores is not None:
            self._report.scores.take_tokens(delta)
        if delta.HasField("score"):
            sample.beam = (delta.cumulative_logprob, delta.score)
        merge = sample.merge
        token_ids = merge.add(delta)
        if token_ids or merge.is_finished:
            self._report.token_came()
            sample.unread += token_ids
            sample.has_news = self._has_news = True
            self._on_news()
        if merge.is_finished:
            self._complete_one()

    def _complete_one(self) -> None:
        self._num_open -= 1
        if self._is_complete:
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(SETTLE_S, self.close)


def _nobody() -> None:
    """Nobody is to be told; and a closed attempt knows nobody who knows it."""


class _LegStream:
    """What one leg's worker says, and its lease."""

    def __init__(
        self,
        attempt: Attempt,
        leg: Leg,
        on_response: Callable[[Any], None],
        *,
        is_alone: bool = False,
    ) -> None:
        self.leg = leg
        self.call: LegCall[Any] | None = None
        self.take = on_response
        self._attempt = attempt
        self._is_alone = is_alone
        leg.on_lost = self._lost

    def cancel(self) -> None:
        self.leg.on_lost = None
        if self.call is not None:
            self.call.cancel()

    def end(self, error: Exception | None) -> None:
        """How it failed becomes what the caller should see."""
        self.leg.on_lost = None
        try:
            failure = self._seen(error) if isinstance(error, grpc.aio.AioRpcError) else error
        except Exception as defect:  # a status that cannot be read
            failure = defect
        self._attempt.leg_ended(self, failure)

    def _seen(self, error: grpc.aio.AioRpcError) -> Exception:
        if self._is_alone and error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return LocalTailTooLong(error.details())
        return leg_failure(self.leg.worker, error)

    def _lost(self, reason: str) -> None:
        self.cancel()
        self._attempt.leg_ended(self, worker_lost(self.leg.worker, reason))
