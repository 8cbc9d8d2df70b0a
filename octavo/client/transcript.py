"""A stream's messages, gathered into what a whole generation gives.

StreamGenerateResponse --take--> Delta, Delta, ...
                          |
                          +----> Completion, once the stream has ended
"""

from collections import defaultdict

import grpc

from octavo.client.completion import (
    Candidate,
    Completion,
    Delta,
    FinishReason,
    matched_stop,
    rows,
)
from octavo.client.error import OctavoError
from octavo.client.tool_call import ToolCall
from octavo.inference.v1 import inference_pb2 as pb
from octavo.token_logprobs import TokenLogprobs, joined


class Transcript:
    """Gathers the events of a stream into a completion."""

    def __init__(self) -> None:
        self._drafts: defaultdict[int, _Draft] = defaultdict(_Draft)
        self._started = pb.StreamGenerateResponse.Started()
        self._completion: Completion | None = None

    def take(self, message: pb.StreamGenerateResponse) -> Delta | None:
        """Note what a message says; return what is new for a reader, if anything is."""
        if message.HasField("started"):
            self._started = message.started
        delta = None
        if message.HasField("delta"):
            delta = Delta.of(message.delta)
            self._drafts[delta.index].add(delta)
        if message.HasField("finished"):
            self._drafts[message.finished.index].finished = message.finished
        if message.HasField("completed"):
            self._completion = self._complete(message)
        return delta

    @property
    def completion(self) -> Completion:
        """The whole output.

        Raises:
            RuntimeError: the stream was not read to its end.
        """
        if self._completion is None:
            raise RuntimeError("read the stream to its end before asking for the completion")
        return self._completion

    def check_complete(self) -> None:
        """Raise OctavoError if a stream ended well but without its last message."""
        if self._completion is None:
            raise OctavoError(grpc.StatusCode.INTERNAL, "the stream ended before it was complete")

    def _complete(self, message: pb.StreamGenerateResponse) -> Completion:
        started = self._started
        indices = sorted({0, *self._drafts})
        return Completion.joined(
            [self._drafts[index].candidate(index) for index in indices],
            started.prompt,
            message.completed,
            model=started.model,
            request_id=message.request_id,
        )


class _Draft:
    """What came of one candidate so far."""

    def __init__(self) -> None:
        self.finished = pb.StreamGenerateResponse.Finished()
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._tool_calls: list[ToolCall] = []
        self._logprobs: list[TokenLogprobs] = []

    def add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._tool_calls += delta.tool_calls
        if delta.logprobs is not None:
            self._logprobs.append(delta.logprobs)

    def candidate(self, index: int) -> Candidate:
        logprobs = joined(self._logprobs) if self._logprobs else None
        return Candidate(
            index=index,
            text="".join(self._texts),
            token_ids=self._token_ids,
            finish_reason=FinishReason.of(self.finished.finish_reason),
            matched_stop=matched_stop(self.finished),
            tool_calls=self._tool_calls,
            logprobs=rows(self._token_ids, logprobs),
            cumulative_logprob=self._total(logprobs),
            score=self.finished.score if self.finished.HasField("score") else None,
        )

    def _total(self, logprobs: TokenLogprobs | None) -> float | None:
        if self.finished.HasField("cumulative_logprob"):
            return self.finished.cumulative_logprob
        return None if logprobs is None else sum(logprobs.logprobs)
