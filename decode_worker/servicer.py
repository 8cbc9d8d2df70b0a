"""Decode: gets a prompt's KV, by pull or by computing a short tail, then streams tokens.

Start -> check -> meet the prefill worker -> reserve blocks -> Started -> pull -> join -+
               \\-> short tail? -> compute -> Started ------------------------------------+
                                                   tokens ..., Completed <--------------+
Stop -----------------------------------------------^
"""

import asyncio
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field, replace
from functools import partial

from octavo.decode_worker.generation import Generation
from octavo.decode_worker.prompt_pull import PromptPuller
from octavo.engine.loop import EngineLoop
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence
from octavo.grammar.grammars import CompiledGrammars
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.errors import (
    Aborted,
    InvalidRequest,
    Precondition,
    RequestError,
    errors_to_status,
)
from octavo.rpc.sampling import invalid_sampling
from octavo.worker.attempts import Attempt, Attempts
from octavo.worker.engine_errors import engine_errors
from octavo.worker.grammar import grammar_of
from octavo.worker.leg_times import LegTimes
from octavo.worker.many_calls import Call, CallContext, DecodeManyContext, serve_many_decodes
from octavo.worker.open_streams import OpenStreams
from octavo.worker.request_log import logged_leg, note_sequence
from octavo.worker.sequence_spec import InputLimits, SequenceSpec, read_sequence

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 5.0
DECODE = "decode"

DecodeContext = CallContext[worker_pb2.DecodeResponse]


@dataclass(slots=True)
class DecodeServicer(worker_pb2_grpc.DecodeServiceServicer):
    """Message in, engine call, message out."""

    loop: EngineLoop
    scheduler: Scheduler
    limits: InputLimits
    eos_token_ids: frozenset[int]
    local_prefill_max_tokens: int
    puller: PromptPuller
    attempts: Attempts[None]
    streams: OpenStreams
    grammars: CompiledGrammars
    times: LegTimes = field(default_factory=LegTimes)

    async def Decode(self, _: object, context: DecodeContext) -> None:
        """The first message starts the request; the stream is the lease on its blocks."""
        arrived = time.monotonic()
        async with errors_to_status(context):
            start = await _read_start(context)
            spec = read_sequence(start.sequence, self.limits)
            with logged_leg(logger, spec) as fields, self.streams.one(), engine_errors():
                seq = self._sequence(spec, is_pulled=start.HasField("kv"))
                self._check_samples(seq)
                seq.grammar = await grammar_of(spec, self.grammars)
                if seq.is_pulled:
                    await self.puller.meet(start.kv.prefill)
                else:
                    await self._check_tail(seq)
                async with self.attempts.leg(spec.key, DECODE) as attempt:
                    attempt.join(DECODE)
                    generation = self._generation(seq, attempt, context, arrived)
                    try:
                        await self._run(generation, start, attempt, context)
                    finally:
                        note_sequence(fields, seq, arrived)
                        self.times.waited(seq, arrived)
                        fields |= generation.costs

    async def DecodeMany(self, _: object, context: DecodeManyContext) -> None:
        """Many Decode calls of one router, each a lease of its own."""
        await serve_many_decodes(context, self.Decode)

    async def _run(
        self,
        generation: Generation,
        start: worker_pb2.DecodeRequest.Start,
        attempt: Attempt[None],
        context: DecodeContext,
    ) -> None:
        seq = generation.seq
        reader = asyncio.create_task(_read_stops(context, generation, attempt))
        try:
            with self.puller.pull(seq, start) as pull:
                async with self.loop.lease(seq) as stream:
                    if seq.is_pulled:
                        await generation.fill(stream, pull)
                    await generation.stream(stream)
                    await generation.complete()
        finally:
            reader.cancel()

    def _generation(
        self, seq: Sequence, attempt: Attempt[None], context: DecodeContext, arrived: float
    ) -> Generation:
        # A stream of its own has no place for tokens but the wire, which may make them wait.
        write_tokens = context.write_tokens if isinstance(context, Call) else _never
        write = attempt.writer(DECODE, context.write)
        return Generation(seq, write, write_tokens, self._stopper(seq), arrived)

    def _sequence(self, spec: SequenceSpec, *, is_pulled: bool) -> Sequence:
        return Sequence(
            seq_id=str(spec.key),
            token_ids=spec.token_ids,
            num_prompt_tokens=len(spec.prompt_token_ids),
            # The prefill worker computes a pulled prompt, and tells of it.
            sampling=replace(spec.sampling, prompt_logprobs=None) if is_pulled else spec.sampling,
            group_key=spec.group_key,
            eos_token_ids=self.eos_token_ids,
            is_pulled=is_pulled,
            adapter=spec.adapter,
        )

    def _check_samples(self, seq: Sequence) -> None:
        """Raise InvalidRequest if several samples can never run here at once."""
        if seq.num_siblings:
            try:
                self.scheduler.check(seq)
            except ValueError as error:
                raise invalid_sampling(error) from error

    def _stopper(self, seq: Sequence) -> Callable[[frozenset[int]], None]:
        def stop(samples: frozenset[int]) -> None:
            self.loop.post(partial(self.scheduler.stop, seq.seq_id, samples))

        return stop

    async def _check_tail(self, seq: Sequence) -> None:
        """The router's index is a hint: look again before the prompt is computed here.

        Raises:
            Precondition: more than the local limit is missing.
        """
        scheduler = self.scheduler
        cached = await self.loop.call(lambda: scheduler.count_cached_tokens(seq))
        missing = seq.num_tokens - cached
        if missing > self.local_prefill_max_tokens:
            raise Precondition(
                "kv",
                f"{missing} prompt tokens are not cached here, at most "
                f"{self.local_prefill_max_tokens} are computed without a prefill worker",
            )


def _never(first_index: int, token_ids: Ids[int], sample: int) -> bool:
    return False


async def _read_start(context: DecodeContext) -> worker_pb2.DecodeRequest.Start:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            request = await context.read()
    except TimeoutError as error:
        # The caller is slow, not wrong: the request itself may well be tried again.
        raise Aborted(f"no message came within {START_TIMEOUT_S:g} s") from error
    if not isinstance(request, worker_pb2.DecodeRequest) or not request.HasField("start"):
        raise InvalidRequest("start", "the first message must be start")
    return request.start


async def _read_stops(
    context: DecodeContext, generation: Generation, attempt: Attempt[None]
) -> None:
    """Stop samples when the router says so; ends when it has no more to say."""
    try:
        while isinstance(request := await context.read(), worker_pb2.DecodeRequest):
            if not request.HasField("stop"):
                raise InvalidRequest("stop", "after the first message only stop may come")
            generation.stop(request.stop.samples)
    except RequestError as error:
        attempt.end(error)
    except Exception:
        logger.exception("reading stops of request %s failed", attempt.key)
        attempt.end(RequestError("internal error; see the worker's log"))
