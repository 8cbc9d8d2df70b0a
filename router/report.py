"""What one request's workers told about it: who, how long, how much was found and moved."""

import time
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.route import Route
from octavo.router.scores import Scores


@dataclass(slots=True)
class RunReport:
    """Filled while a request runs; the last attempt's values stand."""

    arrived_at: float  # time.monotonic(), as all times here
    scores: Scores | None = None  # None: no log-probabilities are asked for
    route: Route | None = None
    prefill_cached_tokens: int | None = None
    decode_cached_tokens: int | None = None
    prefill_started_at: float | None = None
    first_token_at: float | None = None
    told_prefill_s: float | None = None  # absent when the first token ended the request
    transfer_s: float | None = None
    transferred_blocks: int = 0
    ended_at: float | None = None

    @property
    def cached_prompt_tokens(self) -> int:
        """Prompt tokens that whoever computed the prompt found in its cache."""
        if self.route is not None and self.route.prefill is not None:
            return self.prefill_cached_tokens or 0
        return self.decode_cached_tokens or 0

    @property
    def transferred_tokens(self) -> int:
        leg = self.route.prefill if self.route is not None else None
        return self.transferred_blocks * leg.worker.facts.block_size if leg is not None else 0

    @property
    def queue_s(self) -> float | None:
        return self._since_arrival(self.prefill_started_at)

    @property
    def prefill_s(self) -> float | None:
        if self.told_prefill_s is not None:
            return self.told_prefill_s
        if self.prefill_started_at is None or self.first_token_at is None:
            return None
        return self.first_token_at - self.prefill_started_at

    @property
    def first_token_s(self) -> float | None:
        return self._since_arrival(self.first_token_at)

    @property
    def total_s(self) -> float | None:
        return self._since_arrival(self.ended_at)

    def begin(self, route: Route) -> None:
        """A new attempt starts on these workers."""
        self.route = route
        self.prefill_cached_tokens = self.decode_cached_tokens = self.prefill_started_at = None

    def prefill_started(self, started: worker_pb2.PrefillResponse.Started) -> None:
        self.prefill_cached_tokens = started.cached_prompt_tokens
        self.prefill_started_at = time.monotonic()

    def prefill_completed(self, completed: worker_pb2.PrefillResponse.Completed) -> None:
        self.told_prefill_s = _seconds(completed.prefill)
        self.transferred_blocks = max(self.transferred_blocks, completed.transferred_blocks)

    def decode_started(self, started: worker_pb2.DecodeResponse.Started) -> None:
        self.decode_cached_tokens = started.cached_prompt_tokens
        if self.route is not None and self.route.prefill is None:
            self.prefill_started_at = time.monotonic()

    def decode_completed(self, completed: worker_pb2.DecodeResponse.Completed) -> None:
        if self.route is not None and self.route.prefill is None:
            self.told_prefill_s = _seconds(completed.prefill)
        else:
            self.transfer_s = _seconds(completed.transfer)
        self.transferred_blocks = max(self.transferred_blocks, completed.transferred_blocks)

    def token_came(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()

    def _since_arrival(self, at: float | None) -> float | None:
        return at - self.arrived_at if at is not None else None


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9
