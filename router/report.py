"""What one request's workers told about it: who, how long, how much was found and moved."""

import time
from dataclasses import dataclass

from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.route import Route
from octavo.router.scores import Scores
from octavo.rpc.durations import seconds_of


@dataclass(frozen=True, slots=True)
class Moved:
    """Prompt tokens by where their KV was found; the last block of a prompt may be partly full."""

    cached_on_prefill_worker: int
    cached_on_decode_worker: int
    transferred: int


@dataclass(slots=True)
class RunReport:
    """Filled while a request runs.

    Of several attempts the last one says what was found and moved, and the one that gave the first
    token when that was.
    """

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
    _is_timed: bool = True  # no attempt before this one gave the first token

    @property
    def cached_prompt_tokens(self) -> int:
        """Prompt tokens that whoever computed the prompt found in its cache."""
        if self._has_prefill_leg:
            return self.prefill_cached_tokens or 0
        return self.decode_cached_tokens or 0

    @property
    def _has_prefill_leg(self) -> bool:
        return self.route is not None and self.route.prefill is not None

    def moved(self, num_prompt_tokens: int, num_output_tokens: int) -> Moved:
        """What was found where, and what was transferred, for samples of so many tokens."""
        on_prefill = (self.prefill_cached_tokens or 0) if self._has_prefill_leg else 0
        if self._has_prefill_leg and num_output_tokens <= 1:
            return Moved(on_prefill, 0, 0)  # the decode worker may not even have been heard of
        on_decode = min(self.decode_cached_tokens or 0, num_prompt_tokens)
        leg = self.route.prefill if self.route is not None else None
        num_pulled = self.transferred_blocks * leg.worker.facts.block_size if leg else 0
        return Moved(on_prefill, on_decode, min(num_pulled, num_prompt_tokens - on_decode))

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
        self.prefill_cached_tokens = self.decode_cached_tokens = None
        self.transferred_blocks, self.transfer_s = 0, None
        self._is_timed = self.first_token_at is None
        if self._is_timed:
            self.prefill_started_at = self.told_prefill_s = None

    def prefill_started(self, started: worker_pb2.PrefillResponse.Started) -> None:
        self.prefill_cached_tokens = started.cached_prompt_tokens
        self._prefill_begins()

    def prefill_completed(self, completed: worker_pb2.PrefillResponse.Completed) -> None:
        if self._is_timed:
            self.told_prefill_s = seconds_of(completed.prefill)
        self.transferred_blocks = max(self.transferred_blocks, completed.transferred_blocks)

    def decode_started(self, started: worker_pb2.DecodeResponse.Started) -> None:
        self.decode_cached_tokens = started.cached_prompt_tokens
        if not self._has_prefill_leg:
            self._prefill_begins()

    def decode_completed(self, completed: worker_pb2.DecodeResponse.Completed) -> None:
        if not self._has_prefill_leg:
            if self._is_timed:
                self.told_prefill_s = seconds_of(completed.prefill)
        else:
            self.transfer_s = seconds_of(completed.transfer)
        self.transferred_blocks = max(self.transferred_blocks, completed.transferred_blocks)

    def token_came(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()

    def _prefill_begins(self) -> None:
        if self._is_timed:
            self.prefill_started_at = time.monotonic()

    def _since_arrival(self, at: float | None) -> float | None:
        return at - self.arrived_at if at is not None else None
