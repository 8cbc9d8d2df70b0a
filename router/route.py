"""Finds a request its workers: what each holds of the prompt, how loaded each is, who is cheapest.

prompt --> block keys --> prefix index (a hint, within a budget) --+
                                                                   +--> place --> Route
load streams + legs that no sample has counted yet ----------------+
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

from octavo.block_key import block_keys, root_key
from octavo.registry.index import PrefixIndex
from octavo.router.adapter import AdapterFacts
from octavo.router.placement import DecodeCandidate, Demand, PrefillCandidate, place
from octavo.router.worker import Leg, Worker
from octavo.router.workers import Workers

# Further blocks of a long prompt change no choice that is worth their look-up.
MAX_LOOKUP_KEYS = 256


@dataclass(frozen=True, slots=True)
class Route:
    """The legs of one attempt, counted at their workers already; None: no such leg."""

    prefill: Leg | None
    decode: Leg | None


class RouteFinder:
    """Chooses workers by section 5's cost."""

    def __init__(
        self,
        workers: Workers,
        index: PrefixIndex | None,
        *,
        sequence_weight: float,
        local_prefill_max_tokens: int | None,
    ) -> None:
        self._workers = workers
        self._index = index
        self._sequence_weight = sequence_weight
        self._local_prefill_max_tokens = local_prefill_max_tokens
        self._draw = random.Random()

    @asynccontextmanager
    async def route(
        self, demand: Demand, prompt: Sequence[int], group_key: bytes
    ) -> AsyncIterator[Route]:
        """Choose the workers of one attempt and count its legs there until the block ends.

        Raises:
            NoWorker, InvalidRequest: as `place`.
        """
        adapter = demand.adapter
        overlap: Mapping[str, int] = {}
        if demand.may_reuse_prompt:
            overlap = await self._overlap(prompt, group_key, adapter)
        # No await from here to the count: the next request must see this one's weight.
        chosen = place(
            demand,
            [_prefill_candidate(w, overlap) for w in _with(adapter, self._workers.prefills)],
            [self._decode_candidate(w, overlap) for w in _with(adapter, self._workers.decodes)],
            sequence_weight=self._sequence_weight,
            draw=self._draw,
        )
        prefill = decode = None
        with ExitStack() as legs:
            if chosen.prefill_id is not None:
                worker = self._workers.named(chosen.prefill_id)
                missing = _missing_tokens(demand, worker, overlap)
                prefill = legs.enter_context(worker.leg(prefill_tokens=missing))
            if chosen.decode_id is not None:
                worker = self._workers.named(chosen.decode_id)
                missing = _missing_tokens(demand, worker, overlap)
                blocks = missing // worker.facts.block_size + demand.num_samples
                decode = legs.enter_context(worker.leg(blocks=blocks))
            yield Route(prefill, decode)

    def drains(self, worker: Worker) -> None:
        """Choose this worker no more: it takes no new work."""
        self._workers.drains(worker)

    async def _overlap(
        self, prompt: Sequence[int], group_key: bytes, adapter: AdapterFacts | None
    ) -> Mapping[str, int]:
        """Leading blocks that each worker is said to hold; a hint, and never late."""
        if self._index is None:
            return {}
        workers = self._workers.prefills + self._workers.decodes
        overlap: dict[str, int] = {}
        # One pass unless a fleet is changing its block size.
        for block_size in {worker.facts.block_size for worker in workers}:
            alike = [worker.facts for worker in workers if worker.facts.block_size == block_size]
            root = root_key(
                group_key, alike[0].model_fingerprint, adapter.fingerprint if adapter else ""
            )
            looked_up = prompt[: MAX_LOOKUP_KEYS * block_size]
            keys = block_keys(group_key, root, looked_up, block_size)
            overlap |= await self._index.lookup(keys, [(w.worker_id, w.epoch) for w in alike])
        return overlap

    def _decode_candidate(self, worker: Worker, overlap: Mapping[str, int]) -> DecodeCandidate:
        facts = worker.facts
        local_max = facts.local_prefill_max_tokens
        if self._local_prefill_max_tokens is not None:
            local_max = min(local_max, self._local_prefill_max_tokens)
        return DecodeCandidate(
            worker_id=facts.worker_id,
            layout=facts.layout,
            block_size=facts.block_size,
            max_context_tokens=facts.max_context_tokens,
            cached_blocks=overlap.get(facts.worker_id, 0),
            active_blocks=worker.active_blocks,
            num_sequences=worker.num_sequences,
            local_prefill_max_tokens=local_max,
        )


def _with(adapter: AdapterFacts | None, workers: list[Worker]) -> list[Worker]:
    return workers if adapter is None else [worker for worker in workers if worker.holds(adapter)]


def _prefill_candidate(worker: Worker, overlap: Mapping[str, int]) -> PrefillCandidate:
    facts = worker.facts
    return PrefillCandidate(
        worker_id=facts.worker_id,
        layout=facts.layout,
        block_size=facts.block_size,
        max_context_tokens=facts.max_context_tokens,
        cached_blocks=overlap.get(facts.worker_id, 0),
        queued_tokens=worker.queued_tokens,
    )


def _missing_tokens(demand: Demand, worker: Worker, overlap: Mapping[str, int]) -> int:
    cached = overlap.get(worker.facts.worker_id, 0) * worker.facts.block_size
    return max(demand.num_prompt_tokens - cached, 0)
