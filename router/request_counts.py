"""What became of requests since the router's start, as plain sums and histograms."""

from dataclasses import dataclass, field

from octavo.histogram import FIRST_TOKEN_S, INTER_TOKEN_S, REQUEST_S, TOKENS, Histogram
from octavo.inference.v1 import inference_pb2
from octavo.router.sample import Completed, Reply

PROTOCOLS = ("grpc", "http")
# Of these every process tells, from its start on; others when they first come.
STATUSES = (
    *("OK", "CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"),
    *("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"),
)
FINISH_REASONS = tuple(
    name.removeprefix("FINISH_REASON_").lower() for name in inference_pb2.FinishReason.keys()[1:]
)


def finish_reason_name(reason: inference_pb2.FinishReason) -> str:
    """As logs and metrics have it."""
    return inference_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()


@dataclass(slots=True)
class RequestTimes:
    """One value each request that ended well."""

    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    queue: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    prefill: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    decode: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    per_output_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_S))
    total: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))


class RequestCounts:
    """Only the event loop counts."""

    def __init__(self) -> None:
        self.ended = {(p, status): 0 for p in PROTOCOLS for status in STATUSES}
        self.finished: dict[str, int] = dict.fromkeys(FINISH_REASONS, 0)  # samples
        self.prompt_tokens = 0  # of requests that got a first token
        self.generated_tokens = 0
        self.times = RequestTimes()  # of requests that ended well, as all that follows
        self.prompt_lengths = Histogram(TOKENS)
        self.output_lengths = Histogram(TOKENS)

    def request_ended(self, protocol: str, status: str) -> None:
        """However it ended."""
        key = protocol, status
        self.ended[key] = self.ended.get(key, 0) + 1

    def replied(self, reply: Reply) -> None:
        """Something of a request goes to its caller."""
        self.generated_tokens += len(reply.token_ids)
        if reply.started is not None:
            self.prompt_tokens += reply.started.num_prompt_tokens
        if reply.finished is not None:
            self.finished[finish_reason_name(reply.finished.reason)] += 1
        if reply.completed is not None:
            self._completed(reply.completed)

    def _completed(self, completed: Completed) -> None:
        self.prompt_lengths.add(completed.num_prompt_tokens)
        self.output_lengths.add(completed.num_output_tokens)
        times, report = self.times, completed.report
        first_s, total_s = report.first_token_s, report.total_s
        for histogram, seconds in (
            (times.first_token, first_s),
            (times.queue, report.queue_s),
            (times.prefill, report.prefill_s),
            (times.total, total_s),
        ):
            if seconds is not None:
                histogram.add(seconds)
        if first_s is not None and total_s is not None:
            decode_s = total_s - first_s
            times.decode.add(decode_s)
            num_steps = completed.num_further_tokens / completed.num_samples
            if num_steps > 0:
                times.per_output_token.add(decode_s / num_steps)
