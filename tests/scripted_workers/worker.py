"""A scripted prefill worker and a scripted decode worker, each a gRPC server on a free port."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import grpc

from octavo.inference.v1 import inference_pb2
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.channels import server_options
from octavo.rpc.errors import RequestError, errors_to_status
from octavo.worker.many_calls import CallContext, serve_many_decodes, serve_many_prefills

BLOCK_SIZE = 16
EOS = 2
LOCAL_PREFILL_MAX_TOKENS = 32
MAX_SILENCE_S = 0.5

_epochs = itertools.count(1)


class Handover:
    """Stands for the KV stream between two workers: who got how far, by request id."""

    def __init__(self) -> None:
        self.computed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.pulled: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


class ScriptedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """What both roles share: identity, load, and a count of open legs."""

    role = worker_pb2.WORKER_ROLE_UNSPECIFIED

    def __init__(self, worker_id: str, token_ids: list[int], handover: Handover, **facts: Any):
        self.token_ids = token_ids  # the output of every request, over and over
        self.handover = handover
        self.facts = worker_pb2.GetWorkerResponse(
            worker=worker_pb2.WorkerRef(worker_id=worker_id, epoch=next(_epochs)),
            role=self.role,
            layout=worker_pb2.KvLayout(model_fingerprint="m", block_size=BLOCK_SIZE),
            max_context_tokens=1024,
            vocab_size=384,
            local_prefill_max_tokens=LOCAL_PREFILL_MAX_TOKENS,
            serves_decode_many=True,
            serves_prefill_many=True,
        )
        self.facts.MergeFrom(worker_pb2.GetWorkerResponse(**facts))
        self.load = worker_pb2.WatchLoadResponse(epoch=self.facts.worker.epoch)
        self.refusal: RequestError | None = None  # every new leg ends with it
        self.cached_prompt_tokens = 0
        self.deadlines: list[float] = []  # seconds left as each leg arrived
        self.num_open = 0
        self.num_told = 0  # calls of GetWorker
        self.specs: list[worker_pb2.SequenceSpec] = []
        self._holds: dict[int, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._may_speak = asyncio.Event()
        self._may_speak.set()
        self._may_tell = asyncio.Event()
        self._may_tell.set()
        self._leg_changed = asyncio.Event()
        self.server = grpc.aio.server(options=server_options())
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self.server)

    @property
    def address(self) -> str:
        return self.facts.worker.address

    async def __aenter__(self) -> Self:
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.facts.worker.address = f"127.0.0.1:{port}"
        await self.server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.die()

    async def die(self) -> None:
        """End at once, with every open stream."""
        await self.server.stop(0)

    def hold_before(self, index: int) -> asyncio.Event:
        """Do not send output token `index` until the event is set."""
        return self._holds.setdefault(index, asyncio.Event())

    def hold_samples(self) -> asyncio.Event:
        """Send no load sample until the event is set, as a worker whose event loop hangs."""
        self._may_speak.clear()
        return self._may_speak

    def hold_facts(self) -> asyncio.Event:
        """Do not answer GetWorker until the event is set, as a worker in a long step."""
        self._may_tell.clear()
        return self._may_tell

    def set_load(self, **values: Any) -> None:
        """Send a load sample with these fields changed."""
        self.load.MergeFrom(worker_pb2.WatchLoadResponse(**values))
        self._changed.set()

    async def wait_open(self, num_open: int) -> None:
        """Wait, under the caller's timeout, until so many legs are open."""
        while self.num_open != num_open:
            self._leg_changed.clear()
            await self._leg_changed.wait()

    async def GetWorker(
        self, request: worker_pb2.GetWorkerRequest, context: Any
    ) -> worker_pb2.GetWorkerResponse:
        self.num_told += 1
        await self._may_tell.wait()
        return self.facts

    async def WatchLoad(
        self, request: worker_pb2.WatchLoadRequest, context: Any
    ) -> AsyncIterator[worker_pb2.WatchLoadResponse]:
        while True:
            await self._may_speak.wait()
            self._changed.clear()
            yield self.load
            with suppress(TimeoutError):  # a sample comes also while nothing changes
                async with asyncio.timeout(MAX_SILENCE_S):
                    await self._changed.wait()

    @contextmanager
    def _leg(self, spec: worker_pb2.SequenceSpec, context: Any) -> Iterator[None]:
        self.specs.append(spec)
        self.deadlines.append(context.time_remaining())
        self._count(+1)
        try:
            if self.refusal is not None:
                raise self.refusal
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self.num_open += change
        self._leg_changed.set()

    async def _deltas(
        self, spec: worker_pb2.SequenceSpec, num_tokens: int | None = None
    ) -> AsyncIterator[worker_pb2.TokenDelta]:
        tokens = itertools.islice(itertools.cycle(self.token_ids), num_tokens)
        for index, token_id in enumerate(tokens):
            if index in self._holds:
                await self._holds[index].wait()
            reason = _finish_reason(spec.sampling, index, token_id)
            yield worker_pb2.TokenDelta(
                first_index=index, token_ids=[token_id], finish_reason=reason
            )
            if reason:
                return


class ScriptedPrefillWorker(ScriptedWorker, worker_pb2_grpc.PrefillServiceServicer):
    role = worker_pb2.WORKER_ROLE_PREFILL

    def __init__(self, worker_id: str, token_ids: list[int], handover: Handover, **facts: Any):
        super().__init__(worker_id, token_ids, handover, **facts)
        worker_pb2_grpc.add_PrefillServiceServicer_to_server(self, self.server)

    async def PrefillMany(self, _: object, context: Any) -> None:
        await serve_many_prefills(context, self._prefill_in_many)

    async def _prefill_in_many(self, request: worker_pb2.PrefillRequest, context: Any) -> None:
        async for response in self.Prefill(request, context):
            await context.write(response)

    async def Prefill(
        self, request: worker_pb2.PrefillRequest, context: Any
    ) -> AsyncIterator[worker_pb2.PrefillResponse]:
        async with errors_to_status(context):
            with self._leg(request.sequence, context):
                started = worker_pb2.PrefillResponse.Started(
                    cached_prompt_tokens=self.cached_prompt_tokens
                )
                yield worker_pb2.PrefillResponse(started=started)
                self.handover.computed[request.sequence.key.request_id].set()
                async for delta in self._deltas(request.sequence, 1):
                    yield worker_pb2.PrefillResponse(token=delta)
                blocks = 0
                if request.will_be_pulled:
                    await self.handover.pulled[request.sequence.key.request_id].wait()
                    blocks = -(-len(request.sequence.prompt_token_ids) // BLOCK_SIZE)
                completed = worker_pb2.PrefillResponse.Completed(transferred_blocks=blocks)
                yield worker_pb2.PrefillResponse(completed=completed)


class ScriptedDecodeWorker(ScriptedWorker, worker_pb2_grpc.DecodeServiceServicer):
    role = worker_pb2.WORKER_ROLE_DECODE

    def __init__(self, worker_id: str, token_ids: list[int], handover: Handover, **facts: Any):
        super().__init__(worker_id, token_ids, handover, **facts)
        self.starts: list[worker_pb2.DecodeRequest.Start] = []
        self.num_stops = 0
        self.holds_pull: asyncio.Event | None = None
        self.refuse_without_kv: RequestError | None = None
        worker_pb2_grpc.add_DecodeServiceServicer_to_server(self, self.server)

    async def DecodeMany(self, _: object, context: Any) -> None:
        await serve_many_decodes(context, self._decode_in_many)

    async def _decode_in_many(self, _: object, context: Any) -> None:
        async for response in self.Decode(_requests(context), context):
            await context.write(response)
            await asyncio.sleep(0)  # one token of each call, then the next of each: a step

    async def Decode(
        self, requests: AsyncIterator[worker_pb2.DecodeRequest], context: Any
    ) -> AsyncIterator[worker_pb2.DecodeResponse]:
        async with errors_to_status(context):
            start = (await anext(requests)).start
            self.starts.append(start)
            with self._leg(start.sequence, context):
                if self.refuse_without_kv is not None and not start.HasField("kv"):
                    raise self.refuse_without_kv
                started = worker_pb2.DecodeResponse.Started(
                    cached_prompt_tokens=self.cached_prompt_tokens
                )
                yield worker_pb2.DecodeResponse(started=started)
                if self.holds_pull is not None:
                    await self.holds_pull.wait()
                if start.HasField("kv"):
                    await self.handover.computed[start.sequence.key.request_id].wait()
                self.handover.pulled[start.sequence.key.request_id].set()
                stopped = asyncio.create_task(self._stop(requests))
                try:
                    async for delta in self._deltas(start.sequence):
                        yield worker_pb2.DecodeResponse(tokens=delta)
                        if stopped.done():
                            break
                finally:
                    stopped.cancel()
                yield worker_pb2.DecodeResponse(completed=self._completed(start))

    async def _stop(self, requests: AsyncIterator[worker_pb2.DecodeRequest]) -> None:
        async for request in requests:
            if request.WhichOneof("event") == "stop":
                self.num_stops += 1
                return
        await asyncio.Event().wait()  # half-closed

    def _completed(
        self, start: worker_pb2.DecodeRequest.Start
    ) -> worker_pb2.DecodeResponse.Completed:
        blocks = -(-len(start.sequence.prompt_token_ids) // BLOCK_SIZE)
        return worker_pb2.DecodeResponse.Completed(
            transferred_blocks=blocks if start.HasField("kv") else 0
        )


async def _requests(
    context: CallContext[worker_pb2.DecodeResponse],
) -> AsyncIterator[worker_pb2.DecodeRequest]:
    while isinstance(request := await context.read(), worker_pb2.DecodeRequest):
        yield request


def _finish_reason(
    sampling: inference_pb2.SamplingParams, index: int, token_id: int
) -> inference_pb2.FinishReason:
    if token_id in sampling.stop_token_ids or (token_id == EOS and not sampling.ignore_eos):
        return inference_pb2.FINISH_REASON_STOP
    if index + 1 >= sampling.max_tokens:
        return inference_pb2.FINISH_REASON_LENGTH
    return inference_pb2.FINISH_REASON_UNSPECIFIED
