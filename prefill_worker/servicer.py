"""Prefill: computes one prompt and samples its first tokens; the stream is the lease on its blocks.

check -> wait for the pull -> engine -> Started, tokens -> last block acknowledged -> Completed
                                +----progress----> PullKv stream ---+
"""

import logging
import time
from dataclasses import dataclass, field, replace

from octavo.block_key import prompt_digest
from octavo.engine.beam_state import BeamCandidates, BeamState
from octavo.engine.loop import EngineLoop
from octavo.engine.sequence import FinishReason, Sequence, SequenceOutput
from octavo.grammar.grammars import CompiledGrammars
from octavo.grammar.matcher import Grammar
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.prefill_worker.handover import PREFILL, PULL, Handover, Handovers
from octavo.rpc.call_log import Fields
from octavo.rpc.durations import duration
from octavo.rpc.errors import errors_to_status
from octavo.sampling_params import SamplingParams
from octavo.transfer.progress import PromptProgress
from octavo.worker.attempts import Write
from octavo.worker.beams import beam_delta, candidates_to_proto
from octavo.worker.engine_errors import engine_errors
from octavo.worker.grammar import grammar_of
from octavo.worker.leg_times import LegTimes
from octavo.worker.many_calls import CallContext, PrefillManyContext, serve_many_prefills
from octavo.worker.open_streams import OpenStreams
from octavo.worker.request_log import logged_leg, note_sequence
from octavo.worker.sequence_spec import InputLimits, SequenceSpec, read_sequence
from octavo.worker.token_delta import prompt_logprobs, token_delta

logger = logging.getLogger(__name__)

PrefillContext = CallContext[worker_pb2.PrefillResponse]


@dataclass(slots=True)
class PrefillServicer(worker_pb2_grpc.PrefillServiceServicer):
    """Message in, engine call, message out."""

    loop: EngineLoop
    limits: InputLimits
    block_size: int
    eos_token_ids: frozenset[int]
    handovers: Handovers
    streams: OpenStreams
    grammars: CompiledGrammars
    times: LegTimes = field(default_factory=LegTimes)

    async def Prefill(self, request: worker_pb2.PrefillRequest, context: PrefillContext) -> None:
        """Ends normally only after the pull, if there is one, acknowledged the last block."""
        arrived = time.monotonic()
        async with errors_to_status(context):
            spec = read_sequence(request.sequence, self.limits)
            is_known = self.handovers.is_open(spec.key)
            with (
                logged_leg(logger, spec) as fields,
                self.streams.one(belongs_to_open_request=is_known),
                engine_errors(),
            ):
                grammar = await grammar_of(spec, self.grammars)
                async with self.handovers.leg(spec.key, PREFILL) as attempt:
                    progress = PromptProgress(len(spec.token_ids), self.block_size)
                    adapter = spec.adapter.fingerprint if spec.adapter else ""
                    digest = prompt_digest(spec.group_key, spec.token_ids, adapter)
                    attempt.state.offer(digest, progress, request.will_be_pulled)
                    attempt.join(PREFILL)
                    if request.will_be_pulled:
                        await attempt.wait_for(PULL)
                    write = attempt.writer(PREFILL, context.write)
                    prefill = _Prefill(
                        spec,
                        grammar,
                        attempt.state,
                        progress,
                        write,
                        self.eos_token_ids,
                        fields,
                        self.times,
                    )
                    await prefill.run(self.loop, arrived)

    async def PrefillMany(self, _: object, context: PrefillManyContext) -> None:
        """Many Prefill calls of one router, each a lease of its own."""
        await serve_many_prefills(context, self.Prefill)


@dataclass(slots=True)
class _Prefill:
    """One admitted request."""

    spec: SequenceSpec
    grammar: Grammar | None
    handover: Handover
    progress: PromptProgress
    write: Write[worker_pb2.PrefillResponse]
    eos_token_ids: frozenset[int]
    fields: Fields  # of its line in the log
    times: LegTimes
    tokens: list[worker_pb2.TokenDelta] = field(default_factory=list)  # one of each sample

    async def run(self, loop: EngineLoop, arrived: float) -> None:
        seq = Sequence(
            seq_id=str(self.spec.key),
            token_ids=self.spec.token_ids,
            num_prompt_tokens=len(self.spec.prompt_token_ids),
            sampling=self._first_token_only(),
            group_key=self.spec.group_key,
            eos_token_ids=self.eos_token_ids,
            grammar=self.grammar,
            is_leased=True,
            adapter=self.spec.adapter,
        )
        try:
            async with loop.lease(seq) as stream:
                async for output in stream:
                    await self._tell(output)
                computed = time.monotonic()
                self.fields["prefill_s"] = prefill_s = computed - seq.admitted_at
                self.times.prefill.add(prefill_s)
                if self.handover.is_pulled:
                    await self.handover.acknowledged.wait()
        finally:
            note_sequence(self.fields, seq, arrived)
            self.times.waited(seq, arrived)
            self.fields["transferred_blocks"] = self.handover.num_transferred_blocks
        completed = worker_pb2.PrefillResponse.Completed(
            queue=duration(seq.admitted_at - arrived),
            prefill=duration(prefill_s),
            transferred_blocks=self.handover.num_transferred_blocks,
        )
        await self.write(worker_pb2.PrefillResponse(completed=completed))

    async def _tell(self, output: SequenceOutput) -> None:
        """The pull first: what the router reads of this must not hold it up."""
        if output.sample_index == 0:  # the others come with their tokens alone
            self.progress.advance(output.block_ids, output.num_computed_tokens)
        if output.token_ids:
            self._add_token(output)
        elif output.candidates is not None:
            self._take_candidates(output.candidates)
        if output.num_cached_tokens is not None:
            started = worker_pb2.PrefillResponse.Started(
                cached_prompt_tokens=output.num_cached_tokens
            )
            await self.write(worker_pb2.PrefillResponse(started=started))
        if output.prompt_logprobs is not None:
            scores = prompt_logprobs(output.first_prompt_index, output.prompt_logprobs)
            await self.write(worker_pb2.PrefillResponse(prompt_logprobs=scores))
        if self.progress.first is not None:
            for token in self.tokens:
                await self.write(worker_pb2.PrefillResponse(token=token))

    def _add_token(self, output: SequenceOutput) -> None:
        reason = self._finish_reason(output.finish_reason)
        token = token_delta(
            output.first_index, output.token_ids, reason, output.logprobs, output.sample_index
        )
        self.tokens.append(token)
        if len(self.tokens) == self.spec.sampling.num_samples:
            self.progress.finish(worker_pb2.PullKvResponse.Completed(tokens=self.tokens))

    def _take_candidates(self, found: BeamCandidates) -> None:
        """A search goes on at the decode worker, unless it ends with its first tokens."""
        sampling = self.spec.sampling
        if sampling.max_tokens == 1:
            search = BeamState(sampling, self.eos_token_ids)
            search.advance(found)
            self.tokens = [beam_delta(i, b) for i, b in enumerate(search.results(sampling.n))]
        candidates = candidates_to_proto(found)
        self.progress.finish(worker_pb2.PullKvResponse.Completed(candidates=candidates))

    def _first_token_only(self) -> SamplingParams:
        """One more token than is given: the decode worker samples the rest."""
        sampling, num_tokens = self.spec.sampling, len(self.spec.output_token_ids) + 1
        return replace(
            sampling, max_tokens=num_tokens, min_tokens=min(sampling.min_tokens, num_tokens)
        )

    def _finish_reason(self, reason: FinishReason | None) -> FinishReason | None:
        """Every sequence here ends after one token; whether the request does is another matter."""
        is_last = len(self.spec.output_token_ids) + 1 >= self.spec.sampling.max_tokens
        return None if reason is FinishReason.LENGTH and not is_last else reason
