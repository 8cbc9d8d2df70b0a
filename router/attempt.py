"""One attempt of a request on its workers: both legs at once, one stream of tokens out.

    Prefill leg --first token--+
                               +--> TokenMerge --> emit --> the request's text
    Decode leg --- 0 1 2 3 ----+

Either leg's failure ends the other. Both streams are leases: when this task ends, for whatever
reason, both are cancelled and the workers free what they hold.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import grpc

from octavo.inference.v1.inference_pb2 import FinishReason
from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.failures import LocalTailTooLong, leg_failure, worker_lost
from octavo.router.merge import TokenMerge
from octavo.router.report import RunReport
from octavo.router.route import Route
from octavo.router.worker import DecodeCall, Leg
from octavo.rpc.errors import RequestError

# The output is complete; so long may the workers take to say what it cost them.
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Output tokens that are next in order; UNSPECIFIED while more will come."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason


def joined(parts: list[NewTokens]) -> NewTokens:
    """Tokens that came in several parts, as one."""
    if len(parts) == 1:
        return parts[0]
    return NewTokens(tuple(i for part in parts for i in part.token_ids), parts[-1].finish_reason)


class Attempt:
    """The legs of one attempt; `run` until they ended, `stop` from the reader's side."""

    def __init__(
        self,
        route: Route,
        sequence: worker_pb2.SequenceSpec,
        report: RunReport,
        emit: Callable[[NewTokens], None],
    ) -> None:
        self._route = route
        self._sequence = sequence
        self._report = report
        self._emit = emit
        self._merge = TokenMerge()
        self._tasks: list[asyncio.Task[None]] = []
        self._decode_call: DecodeCall | None = None
        self._decode_has_tokens = False
        self._held: list[NewTokens] = []  # until log-probabilities of the whole prompt are there
        self._is_complete = False  # the reader has all that it wants
        self._settling: asyncio.TimerHandle | None = None

    async def run(self, timeout_s: float) -> None:
        """Run both legs to their end.

        Raises:
            LocalTailTooLong: the decode worker wants a prefill worker; no token was emitted.
            RequestError: what the caller should see.
        """
        prefill, decode = self._route.prefill, self._route.decode
        try:
            async with asyncio.TaskGroup() as legs:
                if decode is not None:
                    self._tasks.append(legs.create_task(self._decode(decode, timeout_s)))
                if prefill is not None:
                    self._tasks.append(legs.create_task(self._prefill(prefill, timeout_s)))
        except ExceptionGroup as failed:
            cause = _root_cause(failed)
            if not (self._is_complete and isinstance(cause, RequestError)):
                raise cause from failed
        finally:
            if self._settling is not None:
                self._settling.cancel()
        if not self._is_complete:
            last = decode or prefill
            assert last is not None
            raise worker_lost(last.worker, "ended the stream before the last token")
        if self._held:
            worker = (prefill or decode).worker  # type: ignore[union-attr]  # one of them is there
            raise worker_lost(worker, "told no log-probabilities of the prompt")

    async def stop(self) -> None:
        """The reader needs no more tokens: the decode worker may end the sample."""
        self._complete()
        call = self._decode_call
        if call is None:
            return
        if not self._decode_has_tokens:
            self._end_legs()  # it has not begun; its blocks are wanted by others
            return
        stop = worker_pb2.DecodeRequest(stop=worker_pb2.DecodeRequest.Stop(samples=[0]))
        # A stream that has just ended needs no stop.
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await call.write(stop)
            await call.done_writing()

    async def _prefill(self, leg: Leg, timeout_s: float) -> None:
        request = worker_pb2.PrefillRequest(
            sequence=self._sequence, will_be_pulled=self._route.decode is not None
        )
        call = leg.call = leg.worker.prefill_stub.Prefill(request, timeout=timeout_s)
        with _ending(leg):
            async for response in call:
                self._on_prefill(response)

    async def _decode(self, leg: Leg, timeout_s: float) -> None:
        prefill = self._route.prefill
        start = worker_pb2.DecodeRequest.Start(sequence=self._sequence)
        if prefill is not None:
            start.kv.prefill.CopyFrom(prefill.worker.ref)
        call = leg.call = self._decode_call = leg.worker.decode(timeout_s)
        with _ending(leg, is_alone=prefill is None):
            with suppress(asyncio.InvalidStateError):  # ended already; reading says why
                await call.write(worker_pb2.DecodeRequest(start=start))
            async for response in call:
                self._on_decode(response)

    def _on_prefill(self, response: worker_pb2.PrefillResponse) -> None:
        match response.WhichOneof("event"):
            case "started":
                self._report.prefill_started(response.started)
            case "token":
                self._take(response.token)
                if self._merge.is_finished and self._route.decode is not None:
                    self._end_legs()  # nothing to decode, so nothing to hand over
            case "prompt_logprobs":
                self._take_prompt(response.prompt_logprobs)
            case "completed":
                self._report.prefill_completed(response.completed)

    def _on_decode(self, response: worker_pb2.DecodeResponse) -> None:
        match response.WhichOneof("event"):
            case "started":
                self._report.decode_started(response.started)
            case "tokens":
                self._decode_has_tokens = True
                self._take(response.tokens)
            case "prompt_logprobs":
                self._take_prompt(response.prompt_logprobs)
            case "completed":
                self._report.decode_completed(response.completed)

    def _take_prompt(self, logprobs: worker_pb2.PromptLogprobs) -> None:
        if self._report.scores is not None:
            self._report.scores.take_prompt(logprobs)
            self._emit_held()

    def _emit_held(self) -> None:
        """Give tokens out, unless something of the prompt has to come before them."""
        scores = self._report.scores
        if scores is None or scores.has_prompt:
            held, self._held = self._held, []
            for new in held:
                self._emit(new)

    def _take(self, delta: worker_pb2.TokenDelta) -> None:
        if self._merge.is_finished:
            return
        if self._report.scores is not None:
            self._report.scores.take_tokens(delta)
        token_ids = self._merge.add(delta)
        if token_ids or self._merge.is_finished:
            self._report.token_came()
            self._held.append(NewTokens(token_ids, self._merge.finish_reason))
            self._emit_held()
        if self._merge.is_finished:
            self._complete()

    def _complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(SETTLE_S, self._end_legs)

    def _end_legs(self) -> None:
        for task in self._tasks:
            task.cancel()


@contextmanager
def _ending(leg: Leg, *, is_alone: bool = False) -> Iterator[None]:
    """End a leg's stream with the block; how it failed becomes what the caller should see."""
    try:
        if leg.ended_because is not None and leg.call is not None:
            leg.call.cancel()  # it was ended before there was a call
        yield
    except grpc.aio.AioRpcError as error:
        if is_alone and error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            raise LocalTailTooLong(error.details()) from error
        raise leg_failure(leg.worker, error) from error
    except asyncio.CancelledError:
        if leg.ended_because is None:
            raise
        raise worker_lost(leg.worker, leg.ended_because) from None
    finally:
        if leg.call is not None:
            leg.call.cancel()  # a dropped call would leave its handler running


def _root_cause(failed: ExceptionGroup[Exception]) -> Exception:
    """A defect if there is one, else the failure that came first: it ended the other leg."""
    expected = (RequestError, LocalTailTooLong)
    defects = [error for error in failed.exceptions if not isinstance(error, expected)]
    return (defects or list(failed.exceptions))[0]
