"""What the router takes for a worker's load between two samples of it."""

from collections.abc import AsyncIterator

import grpc
import pytest

from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.worker import REPORT_DELAY_S, Role, Worker, WorkerFacts


def sample(sequences: int, tokens: int, held: int, steps: int = 1) -> worker_pb2.WatchLoadResponse:
    blocks = worker_pb2.GetWorkerResponse.Blocks(held=held)
    return worker_pb2.WatchLoadResponse(
        running_sequences=sequences, waiting_prefill_tokens=tokens, blocks=blocks, steps=steps
    )


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    facts = WorkerFacts("w", "unix:/w", 1, Role.DECODE, b"", "", 16, 1024, 384, 64)
    async with grpc.aio.insecure_channel("unix:/nobody") as channel:
        yield Worker(facts, channel, sample(0, 0, 0))


def known(worker: Worker) -> tuple[int, int, int]:
    return worker.num_sequences, worker.queued_tokens, worker.active_blocks


async def test_a_leg_counts_from_its_start_to_its_end(worker: Worker) -> None:
    with worker.leg(prefill_tokens=200, blocks=13):
        assert known(worker) == (1, 200, 13)
    assert known(worker) == (0, 0, 0)


async def test_a_leg_that_a_sample_counted_ends_before_the_next_sample(worker: Worker) -> None:
    """Else a client's next request would flee the worker that holds its blocks."""
    with worker.leg(prefill_tokens=200, blocks=13) as leg:
        leg.sent_at -= 2 * REPORT_DELAY_S
        worker.observe(sample(1, 120, 15))
        assert known(worker) == (1, 120, 15)
    assert known(worker) == (0, 0, 0)
    worker.observe(sample(0, 0, 0, steps=2))
    assert known(worker) == (0, 0, 0)


async def test_what_others_sent_stays_counted(worker: Worker) -> None:
    with worker.leg(prefill_tokens=200, blocks=13) as leg:
        leg.sent_at -= 2 * REPORT_DELAY_S
        worker.observe(sample(3, 500, 40))
    assert known(worker) == (2, 300, 27)
    worker.observe(sample(2, 250, 25, steps=2))
    assert known(worker) == (2, 250, 25)
