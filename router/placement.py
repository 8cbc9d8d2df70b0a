"""Chooses who computes a prompt and who decodes it. Pure: numbers in, worker ids out.

    prefill:  uncached prompt blocks + queued prefill blocks
    decode:   active blocks + new blocks not already held + w * sequences

The lowest cost wins and equals are drawn at random. Nothing binds a prefix to a worker: a busy
worker's queue outweighs its overlap, the blocks are then computed elsewhere and both hold them.
"""

import random
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from octavo.router.adapter import AdapterFacts
from octavo.rpc.errors import InvalidRequest, NoWorker

PREFILL_HINT = "start one with `octavo prefill-worker`"
DECODE_HINT = "start one with `octavo decode-worker`"


@dataclass(slots=True)  # not frozen: one is made for each worker and request
class PrefillCandidate:
    """What placement knows of one prefill worker."""

    worker_id: str
    layout: Hashable  # workers may exchange blocks only if these are equal
    block_size: int
    max_context_tokens: int
    cached_blocks: int  # leading blocks of this prompt that it holds
    queued_tokens: int  # prompt tokens admitted, waiting or just sent there, not computed yet


@dataclass(slots=True)
class DecodeCandidate:
    """What placement knows of one decode worker."""

    worker_id: str
    layout: Hashable
    block_size: int
    max_context_tokens: int
    cached_blocks: int
    active_blocks: int  # held by sequences, or about to be
    num_sequences: int  # running, waiting or just sent there
    local_prefill_max_tokens: int  # longest prompt tail it computes itself


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of its workers."""

    num_prompt_tokens: int
    max_tokens: int
    # False after a decode worker refused to compute the tail itself.
    may_prefill_locally: bool = True
    # False if the whole prompt is to be computed, whatever of it is cached.
    may_reuse_prompt: bool = True
    num_samples: int = 1  # outputs of the one prompt
    adapter: AdapterFacts | None = None  # which the workers must have; None: none


@dataclass(frozen=True, slots=True)
class Placement:
    """The chosen workers; None means that this leg does not exist."""

    prefill_id: str | None
    decode_id: str | None


def place(
    demand: Demand,
    prefills: Iterable[PrefillCandidate],
    decodes: Iterable[DecodeCandidate],
    *,
    sequence_weight: float,
    draw: random.Random,
) -> Placement:
    """Choose the workers of one request.

    Raises:
        NoWorker: a role that the request needs has no worker, or no two workers fit together.
        InvalidRequest: workers are there, but none whose context is long enough.
    """
    prefills, decodes = tuple(prefills), tuple(decodes)
    if demand.max_tokens == 1:
        return Placement(_lowest(_prefill_costs(demand, prefills), draw), None)
    decode_costs = _decode_costs(demand, decodes, sequence_weight)
    if demand.may_prefill_locally:
        decode = _named(decodes, _lowest(decode_costs, draw))
        if _tail_tokens(demand, decode) <= decode.local_prefill_max_tokens:
            return Placement(None, decode.worker_id)
    return _cheapest_pair(_prefill_costs(demand, prefills), decode_costs, draw)


@dataclass(slots=True)
class _Cost:
    worker_id: str
    layout: Hashable
    blocks: float


def _prefill_costs(demand: Demand, workers: tuple[PrefillCandidate, ...]) -> list[_Cost]:
    if not workers:
        raise _nobody("prefill", PREFILL_HINT, demand.adapter)
    # The prompt and the token sampled after it.
    _check_context(demand.num_prompt_tokens + 1, [w.max_context_tokens for w in workers])
    costs = []
    for worker in workers:
        if worker.max_context_tokens > demand.num_prompt_tokens:
            blocks = _num_blocks(demand.num_prompt_tokens, worker.block_size)
            uncached = max(blocks - worker.cached_blocks, 0)
            cost = uncached + worker.queued_tokens / worker.block_size
            costs.append(_Cost(worker.worker_id, worker.layout, cost))
    return costs


def _decode_costs(
    demand: Demand, workers: tuple[DecodeCandidate, ...], sequence_weight: float
) -> list[_Cost]:
    if not workers:
        raise _nobody("decode", DECODE_HINT, demand.adapter)
    num_tokens = demand.num_prompt_tokens + demand.max_tokens
    _check_context(num_tokens, [w.max_context_tokens for w in workers])
    costs = []
    for worker in workers:
        if worker.max_context_tokens >= num_tokens:
            blocks = _num_blocks(demand.num_prompt_tokens + 1, worker.block_size)
            new = max(blocks - worker.cached_blocks, 0) + demand.num_samples - 1
            cost = worker.active_blocks + new + sequence_weight * worker.num_sequences
            costs.append(_Cost(worker.worker_id, worker.layout, cost))
    return costs


def _nobody(role: str, hint: str, adapter: AdapterFacts | None) -> NoWorker:
    if adapter is None:
        return NoWorker(f"no {role} worker is connected; {hint}")
    return NoWorker(
        f"no {role} worker that takes requests has adapter {adapter.name!r}; load it "
        "(LoadAdapter), or start one with --lora"
    )


def _cheapest_pair(
    prefill_costs: list[_Cost], decode_costs: list[_Cost], draw: random.Random
) -> Placement:
    # Both costs count blocks, so the pair's cost is their sum; within one layout the two choices
    # are independent.
    pairs = []
    for layout in {cost.layout for cost in prefill_costs} & {cost.layout for cost in decode_costs}:
        prefill = [cost for cost in prefill_costs if cost.layout == layout]
        decode = [cost for cost in decode_costs if cost.layout == layout]
        lowest = min(c.blocks for c in prefill) + min(c.blocks for c in decode)
        pairs.append((lowest, prefill, decode))
    if not pairs:
        raise NoWorker(
            "no prefill and decode worker with the same KV layout are connected; "
            "start both with the same model, dtype and block size"
        )
    lowest = min(cost for cost, _, _ in pairs)
    _, prefill, decode = draw.choice([pair for pair in pairs if pair[0] == lowest])
    return Placement(_lowest(prefill, draw), _lowest(decode, draw))


def _tail_tokens(demand: Demand, worker: DecodeCandidate) -> int:
    # Logits need at least one computed token.
    usable = min(worker.cached_blocks, (demand.num_prompt_tokens - 1) // worker.block_size)
    return demand.num_prompt_tokens - usable * worker.block_size


def _lowest(costs: list[_Cost], draw: random.Random) -> str:
    lowest = min(cost.blocks for cost in costs)
    return draw.choice([cost.worker_id for cost in costs if cost.blocks == lowest])


def _named(workers: tuple[DecodeCandidate, ...], worker_id: str) -> DecodeCandidate:
    return next(worker for worker in workers if worker.worker_id == worker_id)


def _num_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _check_context(num_tokens: int, limits: list[int]) -> None:
    if num_tokens > max(limits):
        raise InvalidRequest(
            "sampling.max_tokens",
            f"prompt and output need {num_tokens} tokens, but no connected worker has a context "
            f"of more than {max(limits)}",
        )
