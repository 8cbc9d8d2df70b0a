"""WorkerService: who a worker is, what it holds, how busy it is, which adapters it loads."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

import grpc

from octavo.engine.engine import Engine
from octavo.engine.load import Load
from octavo.engine.loop import EngineLoop
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.rpc.errors import errors_to_status
from octavo.transfer.counters import TransferCounters
from octavo.worker.adapters import WorkerAdapters
from octavo.worker.engine_errors import engine_errors
from octavo.worker.open_streams import OpenStreams

MIN_INTERVAL_S = 0.01
MAX_INTERVAL_S = 60.0
# A sample comes at least so often, so that its reader sees steps stand still.
MAX_SILENCE_S = 1.0

LoadContext = grpc.aio.ServicerContext[worker_pb2.WatchLoadRequest, worker_pb2.WatchLoadResponse]
WorkerContext = grpc.aio.ServicerContext[worker_pb2.GetWorkerRequest, worker_pb2.GetWorkerResponse]

LoadAdapterContext = grpc.aio.ServicerContext[
    worker_pb2.LoadAdapterRequest, worker_pb2.LoadAdapterResponse
]
UnloadAdapterContext = grpc.aio.ServicerContext[
    worker_pb2.UnloadAdapterRequest, worker_pb2.UnloadAdapterResponse
]


@dataclass(slots=True)
class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """`facts` holds what does not change until the worker ends."""

    facts: worker_pb2.GetWorkerResponse
    engine: Engine
    loop: EngineLoop
    streams: OpenStreams
    transfers: TransferCounters
    adapters: WorkerAdapters

    async def GetWorker(
        self, _: worker_pb2.GetWorkerRequest, context: WorkerContext
    ) -> worker_pb2.GetWorkerResponse:
        """Counts are exact: the engine thread takes them between two steps."""
        response = worker_pb2.GetWorkerResponse()
        async with errors_to_status(context):
            with engine_errors():
                load, counters = await self.loop.call(
                    lambda: (self.engine.scheduler.load(), self.engine.counters())
                )
            response.CopyFrom(self.facts)
            response.blocks.CopyFrom(_blocks(load))
            # The engine counts what the message names, and what it cannot know follows.
            for name in counters.__slots__:
                setattr(response.counters, name, getattr(counters, name))
            response.counters.preemptions = counters.preemptions
            response.counters.blocks_transferred = self.transfers.blocks
            response.counters.bytes_transferred = self.transfers.bytes
            response.counters.digest_mismatches = self.transfers.digest_mismatches
        return response

    async def WatchLoad(self, request: worker_pb2.WatchLoadRequest, context: LoadContext) -> None:
        """Ends with the last stream of a worker that drains."""
        async with errors_to_status(context):
            wanted_s = request.min_interval.ToNanoseconds() / 1e9
            interval_s = min(max(wanted_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
            sequence = 0
            with engine_errors():
                while True:
                    load, was_draining = self.loop.load, self.streams.is_draining
                    adapters = self.adapters.refs
                    is_last = was_draining and self.streams.num_open == 0
                    await context.write(self._sample(load, sequence))
                    if is_last:
                        return
                    sequence += 1
                    await asyncio.sleep(interval_s)
                    is_old = self.loop.load is load and self.adapters.refs is adapters
                    if is_old and self.streams.is_draining == was_draining:
                        await self._wait_for_news()

    async def LoadAdapter(
        self, request: worker_pb2.LoadAdapterRequest, context: LoadAdapterContext
    ) -> worker_pb2.LoadAdapterResponse:
        response = worker_pb2.LoadAdapterResponse()
        async with errors_to_status(context):
            adapter, is_new = await self.adapters.load(request.name, request.path)
            response = worker_pb2.LoadAdapterResponse(adapter=adapter, is_new=is_new)
        return response

    async def UnloadAdapter(
        self, request: worker_pb2.UnloadAdapterRequest, context: UnloadAdapterContext
    ) -> worker_pb2.UnloadAdapterResponse:
        async with errors_to_status(context):
            self.adapters.unload(request.name)
        return worker_pb2.UnloadAdapterResponse()

    def _sample(self, load: Load, sequence: int) -> worker_pb2.WatchLoadResponse:
        return worker_pb2.WatchLoadResponse(
            epoch=self.facts.worker.epoch,
            sequence=sequence,
            running_sequences=load.running_sequences,
            waiting_sequences=load.waiting_sequences,
            waiting_prefill_tokens=load.waiting_prefill_tokens,
            blocks=_blocks(load),
            steps=load.steps,
            is_draining=self.streams.is_draining,
            adapters=self.adapters.refs,
        )

    async def _wait_for_news(self) -> None:
        """Another load, other adapters, the begin of draining or its end, or long silence."""
        draining = self.streams.is_draining
        news: list[Coroutine[object, object, object]] = [self.loop.load_change()]
        news.append(
            self.streams.wait_until_idle() if draining else self.streams.wait_until_draining()
        )
        tasks = [asyncio.ensure_future(each) for each in news]
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=MAX_SILENCE_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()  # raises if the engine died


def _blocks(load: Load) -> worker_pb2.GetWorkerResponse.Blocks:
    counts = load.blocks
    return worker_pb2.GetWorkerResponse.Blocks(
        total=counts.total, free=counts.free, cached=counts.cached, held=counts.held
    )
