"""KV slots of the paper's workloads in the engine's own pool and scheduler, without a model.

lengths --> Scheduler, BlockPool, PrefixCache + a runner that computes nothing --> steps
lengths --> reservations of whole requests, first come first served ------------> steps
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from octavo.engine.block_pool import BlockPool
from octavo.engine.limits import Limits
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence
from octavo.sampling_params import SamplingParams

# OPT-13B on one A100 in the paper: 12 GB of KV, 800 KB a token, contexts of 2,048 tokens.
NUM_SLOTS = 15_700
MAX_LENGTH = 2_048
# Mean (prompt, output) tokens in the paper: ShareGPT's are 8.4 and 5.8 times Alpaca's.
WORKLOADS = {"ShareGPT-like": (161.0, 338.0), "Alpaca-like": (161 / 8.4, 338 / 5.8)}
SIGMA = 1.0  # of the log-normal lengths
WARM_SHARE = 0.25  # of the steps, before the pool is full of mixed ages
GROUP = b"p" * 32
Lengths = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Use:
    """Means over the steps in which requests were waiting."""

    utilisation: float  # slots that hold a token over slots that are taken
    concurrency: float
    preemptions: int = 0


def draw_lengths(name: str, count: int, seed: int) -> Lengths:
    """(prompt, output) tokens, log-normal around the means, cut where a context ends.

    `count` is of the first workload; a shorter one gets more, so that all make as many tokens.
    """
    rng = np.random.default_rng(seed)
    first, mine = next(iter(WORKLOADS.values())), WORKLOADS[name]
    count = round(count * sum(first) / sum(mine))

    def draw(mean: float, most: int) -> list[int]:
        values = rng.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA, count)
        return np.clip(values, 4, most).astype(int).tolist()

    mean_input, mean_output = WORKLOADS[name]
    return list(
        zip(draw(mean_input, MAX_LENGTH // 2), draw(mean_output, MAX_LENGTH // 2), strict=True)
    )


def paged(lengths: Lengths, block_size: int, on_step: Callable[[], None] = lambda: None) -> Use:
    """The engine's scheduler with more requests waiting than it can hold."""
    num_blocks = NUM_SLOTS // block_size
    pool = BlockPool(num_blocks)
    limits = Limits(block_size, 512, 8192, MAX_LENGTH)
    scheduler = Scheduler(pool, PrefixCache(pool, block_size), limits)
    rng = np.random.default_rng(11)
    for index, (num_prompt, num_output) in enumerate(lengths):
        prompt = list(rng.bytes(num_prompt))
        sampling = SamplingParams(max_tokens=num_output, temperature=0.0)
        scheduler.add(Sequence(str(index), prompt, num_prompt, sampling, GROUP))
    held: list[int] = []
    live: list[int] = []
    allocated: list[int] = []
    next_token = 1_000
    while scheduler.load().waiting_sequences:
        before = scheduler.totals.live_slot_steps, scheduler.totals.allocated_slot_steps
        plan = scheduler.schedule()
        tokens = range(next_token, next_token + len(plan.sampled))
        next_token += len(plan.sampled)
        held.append(scheduler.num_active)
        scheduler.commit(plan, list(tokens))
        live.append(scheduler.totals.live_slot_steps - before[0])
        allocated.append(scheduler.totals.allocated_slot_steps - before[1])
        on_step()
    warm = int(WARM_SHARE * len(held))
    utilisation = sum(live[warm:]) / sum(allocated[warm:])
    return Use(utilisation, fmean(held[warm:]), scheduler.totals.preemptions)


def reserved(lengths: Lengths, slots_of: Callable[[int, int], int]) -> Use:
    """One span a request, from its start to its end: what systems before paging did."""
    waiting = list(reversed(lengths))
    running: list[list[int]] = []  # [tokens now, tokens at the end, reserved slots]
    free = NUM_SLOTS
    held: list[int] = []
    live: list[int] = []
    while waiting:
        while waiting and (slots := slots_of(*waiting[-1])) <= free:
            num_prompt, num_output = waiting.pop()
            running.append([num_prompt, num_prompt + num_output, slots])
            free -= slots
        held.append(len(running))
        live.append(sum(tokens for tokens, _, _ in running))
        for request in running:
            request[0] += 1
        free += sum(slots for tokens, end, slots in running if tokens >= end)
        running = [request for request in running if request[0] < request[1]]
    warm = int(WARM_SHARE * len(held))
    # The paper counts against the whole of the KV memory, which is what these systems reserve.
    return Use(fmean(live[warm:]) / NUM_SLOTS, fmean(held[warm:]))


def exact_slots(num_prompt: int, num_output: int) -> int:
    """Orca (Oracle): the output's length is known before it is made."""
    return num_prompt + num_output


def power_of_two_slots(num_prompt: int, num_output: int) -> int:
    """Orca (Pow2): room for up to twice the output."""
    return int(min(num_prompt + 2 ** int(np.ceil(np.log2(num_output))), MAX_LENGTH))


def longest_slots(num_prompt: int, num_output: int) -> int:
    """Orca (Max): the longest context for everybody."""
    return MAX_LENGTH
