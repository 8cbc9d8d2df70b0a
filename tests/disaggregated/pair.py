"""A prefill and a decode worker in this process, driven as a router would drive them."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.decode_worker.config import DecodeConfig
from octavo.decode_worker.server import DecodeWorker, running_decode_worker
from octavo.engine.build import build_engine
from octavo.internal.v1alpha1 import worker_pb2, worker_pb2_grpc
from octavo.prefill_worker.config import PrefillConfig
from octavo.prefill_worker.server import PrefillWorker, running_prefill_worker
from octavo.rpc.channels import open_channel
from octavo.rpc.sampling import sampling_to_proto
from octavo.sampling_params import SamplingParams

GROUP_KEY = bytes(range(32))
GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=8)
SMALL: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "num_blocks": 64,
    "max_num_batched_tokens": 64,
}

_request_ids = itertools.count()


@dataclass(slots=True)
class Reply:
    """Everything that the streams of one request said."""

    first_token: worker_pb2.TokenDelta | None = None  # as the prefill worker told it
    prefill_started: worker_pb2.PrefillResponse.Started | None = None
    prefill_completed: worker_pb2.PrefillResponse.Completed | None = None
    started: worker_pb2.DecodeResponse.Started | None = None
    deltas: list[worker_pb2.TokenDelta] = field(default_factory=list)
    completed: worker_pb2.DecodeResponse.Completed | None = None

    @property
    def tokens(self) -> list[int]:
        """Output tokens by index, each of which must come once and in order from each stream."""
        deltas = self.deltas or ([self.first_token] if self.first_token else [])
        tokens: list[int] = []
        for delta in deltas:
            assert delta.first_index == deltas[0].first_index + len(tokens)
            tokens += delta.token_ids
        if self.first_token and deltas:
            assert tokens[0] == self.first_token.token_ids[0]
            assert deltas[0].first_index == self.first_token.first_index
        return tokens

    @property
    def finish_reason(self) -> int:
        last = self.deltas[-1] if self.deltas else self.first_token
        return last.finish_reason if last else 0


@dataclass(slots=True)
class Pair:
    """Two workers and their stubs."""

    prefill: PrefillWorker
    decode: DecodeWorker
    prefill_stub: worker_pb2_grpc.PrefillServiceStub
    transfer_stub: worker_pb2_grpc.KvTransferServiceStub
    prefill_worker_stub: worker_pb2_grpc.WorkerServiceStub
    decode_stub: worker_pb2_grpc.DecodeServiceStub
    decode_worker_stub: worker_pb2_grpc.WorkerServiceStub

    def start(self, spec: worker_pb2.SequenceSpec) -> worker_pb2.DecodeRequest.Start:
        """What D is told of a request whose blocks P has."""
        handle = worker_pb2.KvHandle(prefill=self.prefill.facts.worker)
        return worker_pb2.DecodeRequest.Start(sequence=spec, kv=handle)

    async def generate(self, spec: worker_pb2.SequenceSpec) -> Reply:
        """Both legs at once; the first failure ends the other."""
        reply = Reply()
        is_decoded = spec.sampling.max_tokens - len(spec.output_token_ids) > 1
        try:
            async with asyncio.TaskGroup() as legs:
                legs.create_task(self.run_prefill(spec, reply, will_be_pulled=is_decoded))
                if is_decoded:
                    legs.create_task(self.run_decode(self.start(spec), reply))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return reply

    async def run_prefill(
        self, spec: worker_pb2.SequenceSpec, reply: Reply, *, will_be_pulled: bool = True
    ) -> None:
        request = worker_pb2.PrefillRequest(sequence=spec, will_be_pulled=will_be_pulled)
        call = self.prefill_stub.Prefill(request)
        try:
            async for response in call:
                if response.HasField("started"):
                    reply.prefill_started = response.started
                elif response.HasField("token"):
                    reply.first_token = response.token
                else:
                    reply.prefill_completed = response.completed
        finally:
            call.cancel()

    async def run_decode(self, start: worker_pb2.DecodeRequest.Start, reply: Reply) -> None:
        call = self.decode_stub.Decode()
        try:
            await call.write(worker_pb2.DecodeRequest(start=start))
            async for response in call:
                if response.HasField("started"):
                    reply.started = response.started
                elif response.HasField("tokens"):
                    reply.deltas.append(response.tokens)
                else:
                    reply.completed = response.completed
        finally:
            call.cancel()

    async def run_local(self, spec: worker_pb2.SequenceSpec) -> Reply:
        """Decode worker alone."""
        reply = Reply()
        await self.run_decode(worker_pb2.DecodeRequest.Start(sequence=spec), reply)
        return reply

    async def wait_until_quiet(self, timeout_s: float = 1.0) -> None:
        """Within a second nobody holds a block, a slot or a stream, and the sums are right."""
        segment = self.prefill.path.segment
        async with asyncio.timeout(timeout_s):
            for worker in (self.prefill, self.decode):
                while (
                    (counts := worker.loop.load.blocks).held
                    or worker.streams.num_open
                    or counts.free + counts.cached != counts.total
                ):
                    await asyncio.sleep(0.005)
            while segment is not None and segment.num_free != segment.num_slots:
                await asyncio.sleep(0.005)


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    """Wait until all have ended, each in its own way."""
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)


def sequence(
    prompt: list[int],
    sampling: SamplingParams = GREEDY,
    *,
    request_id: str | None = None,
    attempt: int = 1,
    output: list[int] | None = None,
) -> worker_pb2.SequenceSpec:
    """A request's sequence under an id of its own."""
    return worker_pb2.SequenceSpec(
        key=worker_pb2.RequestKey(
            request_id=request_id or f"request-{next(_request_ids)}", attempt=attempt
        ),
        prompt_token_ids=prompt,
        output_token_ids=output or [],
        sampling=sampling_to_proto(sampling),
        group_key=GROUP_KEY,
    )


@asynccontextmanager
async def running_pair(
    model: Path,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
) -> AsyncIterator[Pair]:
    """Workers of `model` with small pools; the dicts change settings."""
    prefill_config = PrefillConfig(model=str(model), **SMALL | (prefill or {}))
    decode_config = DecodeConfig(model=str(model), **SMALL | (decode or {}))
    prefill_engine = build_engine(prefill_config.engine_config())
    decode_engine = build_engine(decode_config.engine_config())
    async with (
        running_prefill_worker(prefill_config, prefill_engine) as p,
        running_decode_worker(decode_config, decode_engine) as d,
        open_channel(p.facts.worker.address) as to_prefill,
        open_channel(d.facts.worker.address) as to_decode,
    ):
        yield Pair(
            p,
            d,
            worker_pb2_grpc.PrefillServiceStub(to_prefill),
            worker_pb2_grpc.KvTransferServiceStub(to_prefill),
            worker_pb2_grpc.WorkerServiceStub(to_prefill),
            worker_pb2_grpc.DecodeServiceStub(to_decode),
            worker_pb2_grpc.WorkerServiceStub(to_decode),
        )
