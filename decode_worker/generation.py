"""One Decode stream from its reservation to its last message."""

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

from octavo.decode_worker.prompt_pull import PromptPull
from octavo.engine.sequence import Sequence, SequenceOutput
from octavo.engine.stream import SequenceStream
from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.call_log import Fields
from octavo.rpc.durations import duration
from octavo.rpc.errors import InvalidRequest
from octavo.transfer.progress import are_finished
from octavo.worker.attempts import Write
from octavo.worker.beams import beam_delta
from octavo.worker.stream_scope import StreamScope
from octavo.worker.token_delta import prompt_logprobs, token_delta

# Writes tokens of a sample, from an output index on, without waiting; False if that cannot be done
# now.
WriteTokens = Callable[[int, Ids[int], int], bool]


class StoppedEarly(Exception):
    """The router matched a stop string in every sample: what was sent is all there is."""


@dataclass(slots=True)
class Generation:
    """Writes what happens to a request's samples."""

    seq: Sequence  # its first sample
    write: Write[worker_pb2.DecodeResponse]
    write_tokens: WriteTokens
    stop_samples: Callable[[frozenset[int]], None]  # asks the engine to
    arrived: float
    transfer_s: float = 0.0
    computed_s: float = 0.0
    num_transferred_blocks: int = 0
    _open: set[int] = field(init=False)  # samples that go on
    _stopped: set[int] = field(default_factory=set)  # before they joined
    _has_joined: bool = field(init=False)
    _stop: StreamScope = field(default_factory=StreamScope)

    def __post_init__(self) -> None:
        self._open = set(range(self.seq.sampling.num_samples))
        self._has_joined = not self.seq.is_pulled

    def stop(self, samples: Iterable[int]) -> None:
        """End samples early; the stream ends well with the last one.

        Raises:
            InvalidRequest: there is no such sample.
        """
        stopped = frozenset(samples)
        last = self.seq.sampling.num_samples - 1
        if stopped and max(stopped) > last:
            raise InvalidRequest("stop.samples", f"stop.samples must be 0 to {last}")
        self._open -= stopped
        if not self._open:
            self._stop.end(StoppedEarly())
        elif self._has_joined:
            self.stop_samples(stopped)
        else:
            self._stopped |= stopped

    async def fill(self, stream: SequenceStream, pull: PromptPull) -> None:
        """Reserve, pull and join; first tokens that end every sample are all there is to do."""
        reserved = await anext(stream)
        began = time.monotonic()
        await self._start(reserved)
        first = await pull.run(reserved)
        self.num_transferred_blocks = pull.num_blocks
        self.transfer_s = time.monotonic() - began
        self._has_joined = True
        if self._stopped:
            self.stop_samples(frozenset(self._stopped))
        if are_finished(first):
            self._open.clear()
            for token in first.tokens:
                await self.write(worker_pb2.DecodeResponse(tokens=token))

    async def stream(self, stream: SequenceStream) -> None:
        """Write tokens until every sample has ended or is stopped."""
        while self._open:
            try:
                # Only waiting is cut short: a write that was begun is not taken back.
                with self._stop:
                    output = await stream.not_taken(self._take)
            except StoppedEarly:
                return
            if output.finish_reason is not None:
                self._open.discard(output.sample_index)
            if output.num_cached_tokens is not None and not self.seq.is_pulled:
                await self._start(output)
            if output.prompt_logprobs is not None:
                scores = prompt_logprobs(output.first_prompt_index, output.prompt_logprobs)
                await self.write(worker_pb2.DecodeResponse(prompt_logprobs=scores))
            if output.token_ids:
                await self._write_tokens(output)

    @property
    def costs(self) -> Fields:
        """For the line in the log: what the prompt cost here."""
        if not self.seq.is_pulled:
            return {"prefill_s": self.computed_s or None}
        return {
            "transfer_s": self.transfer_s or None,
            "transferred_blocks": self.num_transferred_blocks,
        }

    async def complete(self) -> None:
        """The last message."""
        completed = worker_pb2.DecodeResponse.Completed(
            queue=duration(self.seq.admitted_at - self.arrived),
            prefill=duration(self.computed_s),
            transfer=duration(self.transfer_s),
            transferred_blocks=self.num_transferred_blocks,
            preemptions=self.seq.num_preemptions,
        )
        await self.write(worker_pb2.DecodeResponse(completed=completed))

    async def _start(self, output: SequenceOutput) -> None:
        started = worker_pb2.DecodeResponse.Started(cached_prompt_tokens=output.num_cached_tokens)
        await self.write(worker_pb2.DecodeResponse(started=started))

    def _take(self, output: SequenceOutput) -> bool:
        """Write tokens from the middle of a sample, if that needs no waiting."""
        is_last = output.finish_reason is not None or output.error is not None
        if is_last or output.num_cached_tokens is not None or self._lacks_computed_s:
            return False
        if output.logprobs is not None or output.prompt_logprobs is not None:
            return False
        return not output.token_ids or self.write_tokens(
            output.first_index, output.token_ids, output.sample_index
        )

    async def _write_tokens(self, output: SequenceOutput) -> None:
        if self._lacks_computed_s:
            self.computed_s = time.monotonic() - self.seq.admitted_at
        if output.beam is not None:
            delta = beam_delta(output.sample_index, output.beam)
            await self.write(worker_pb2.DecodeResponse(tokens=delta))
            return
        delta = token_delta(
            output.first_index,
            output.token_ids,
            output.finish_reason,
            output.logprobs,
            output.sample_index,
        )
        await self.write(worker_pb2.DecodeResponse(tokens=delta))

    @property
    def _lacks_computed_s(self) -> bool:
        return not self.seq.is_pulled and self.computed_s == 0.0
