"""PullKv: hands one prompt's blocks to a decode worker while they are being computed.

open --> epoch, layout --> park until the Prefill stream is there --> digest, bounds --> send
ack, ack, ... --> window --> slots free, next chunks
"""

import asyncio
import logging
from dataclasses import dataclass

import grpc

from octavo.internal.v1alpha1 import worker_pb2
from octavo.prefill_worker.handover import PREFILL, PULL, Handover, Handovers
from octavo.rpc.channels import INTERNAL_MESSAGE_BYTES
from octavo.rpc.errors import (
    Aborted,
    InvalidRequest,
    Overloaded,
    Precondition,
    RequestError,
    errors_to_status,
)
from octavo.transfer.layout import check_layout
from octavo.transfer.request_key import RequestKey
from octavo.transfer.segment import StagingSegment
from octavo.transfer.sender import ChunkSender, SendPath
from octavo.transfer.window import Window
from octavo.worker.attempts import Attempt
from octavo.worker.open_streams import OpenStreams

logger = logging.getLogger(__name__)

MAX_UNACKNOWLEDGED_CHUNKS = 3  # one is copied in, one out, one on its way
STALL_S = 5.0
OPEN_TIMEOUT_S = 5.0
MAX_PARKED_PULLS = 4096
MAX_HEADER_BYTES = 64  # of a chunk with one block

PullContext = grpc.aio.ServicerContext[worker_pb2.PullKvRequest, bytes]


@dataclass(slots=True)
class PullServicer:
    """Serves PullKv with responses that are bytes already."""

    epoch: int
    layout: worker_pb2.KvLayout
    path: SendPath
    handovers: Handovers
    streams: OpenStreams
    stall_s: float = STALL_S

    def handler(self) -> grpc.GenericRpcHandler:
        """The service as grpc wants it; generated code would serialise every payload again."""
        service = worker_pb2.DESCRIPTOR.services_by_name["KvTransferService"]
        pull_kv: grpc.RpcMethodHandler[worker_pb2.PullKvRequest, bytes]
        pull_kv = grpc.stream_stream_rpc_method_handler(
            self.PullKv,
            request_deserializer=worker_pb2.PullKvRequest.FromString,
            response_serializer=bytes,
        )
        return grpc.method_handlers_generic_handler(service.full_name, {"PullKv": pull_kv})

    async def PullKv(self, _: object, context: PullContext) -> None:
        async with errors_to_status(context):
            opening = await _read_open(context)
            key = RequestKey.from_proto(opening.key, "open.key")
            self._check(opening)
            is_known = self.handovers.is_open(key)
            with self.streams.one(belongs_to_open_request=is_known):
                if not is_known and len(self.handovers) >= MAX_PARKED_PULLS:
                    raise Overloaded(f"{MAX_PARKED_PULLS} requests are open here", 1.0)
                async with self.handovers.leg(key, PULL) as attempt:
                    await attempt.wait_for(PREFILL)
                    await self._hand_over(attempt, opening, context)

    def _check(self, opening: worker_pb2.PullKvRequest.Open) -> None:
        if opening.epoch != self.epoch:
            raise Precondition(
                "open.epoch",
                f"open.epoch is {opening.epoch:016x}, this worker's is {self.epoch:016x}: "
                "it was restarted",
            )
        check_layout(self.layout, opening.layout, "the decode worker")
        self._segment_of(opening.transport)

    def _segment_of(self, transport: worker_pb2.Transport) -> StagingSegment | None:
        if transport == worker_pb2.TRANSPORT_BYTES:
            self._check_message_size()
            return None
        if transport == worker_pb2.TRANSPORT_SHARED_MEMORY and self.path.segment is not None:
            return self.path.segment
        raise InvalidRequest(
            "open.transport",
            f"open.transport {transport} is not offered by this worker",
        )

    def _check_message_size(self) -> None:
        num_bytes = self.path.kv_cache.block_bytes + MAX_HEADER_BYTES
        if num_bytes > INTERNAL_MESSAGE_BYTES:
            raise Precondition(
                "open.transport",
                f"a message with one block has {num_bytes} bytes, at most {INTERNAL_MESSAGE_BYTES} "
                "may pass; start the workers with a smaller block_size, or on one host",
            )

    async def _hand_over(
        self,
        attempt: Attempt[Handover],
        opening: worker_pb2.PullKvRequest.Open,
        context: PullContext,
    ) -> None:
        progress = attempt.state.take(opening.prompt_digest, opening.first_block)
        attempt.join(PULL)
        window = Window(MAX_UNACKNOWLEDGED_CHUNKS, self.stall_s, attempt.end)
        sender = ChunkSender(
            self.path,
            self._segment_of(opening.transport),
            window,
            attempt.writer(PULL, context.write),
        )
        acknowledgements = asyncio.create_task(_read_acknowledgements(context, window, attempt))
        try:
            attempt.state.acknowledge(await sender.send(progress, opening.first_block))
        finally:
            acknowledgements.cancel()
            window.close()


async def _read_open(context: PullContext) -> worker_pb2.PullKvRequest.Open:
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            request = await context.read()
    except TimeoutError as error:
        # The caller is slow, not wrong: the request itself may well be tried again.
        raise Aborted(f"no message came within {OPEN_TIMEOUT_S:g} s") from error
    if not isinstance(request, worker_pb2.PullKvRequest) or not request.HasField("open"):
        raise InvalidRequest("open", "the first message must be open")
    return request.open


async def _read_acknowledgements(
    context: PullContext, window: Window, attempt: Attempt[Handover]
) -> None:
    """Feed the window until the caller has no more to say."""
    try:
        while isinstance(request := await context.read(), worker_pb2.PullKvRequest):
            if not request.HasField("ack"):
                raise InvalidRequest("ack", "after the first message only ack may come")
            window.acknowledge(request.ack.chunk)
    except RequestError as error:
        attempt.end(error)
    except Exception:
        logger.exception("reading acknowledgements of request %s failed", attempt.key)
        attempt.end(RequestError("internal error; see the worker's log"))
