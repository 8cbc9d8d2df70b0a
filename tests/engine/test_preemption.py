"""An exhausted pool: who gives way, who comes back first, and that everyone ends."""

import random
from collections.abc import Iterable
from collections.abc import Sequence as Ids

import pytest
import torch

from engine.counting import (
    CountingRunner,
    check_blocks,
    make_scheduler,
    make_sequence,
    run_to_end,
    step,
)
from octavo.block_key import BlockKey, block_key
from octavo.engine.block_pool import BlockPool
from octavo.engine.preemption_cost import PreemptionCost
from octavo.engine.prefix_cache import KeyFunction
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence, Status
from octavo.engine.swap_space import SwapSpace
from octavo.sampling_params import BeamSearch

POLICIES = ["recompute", "swap", "either"]


@pytest.mark.parametrize("num_host_blocks", [0, 2, 8])
def test_the_latest_arrival_gives_way_and_resumes_with_the_same_tokens(
    num_host_blocks: int,
) -> None:
    runner = CountingRunner()
    scheduler = make_scheduler(6, swap=make_swap(runner, num_host_blocks))
    seqs = [make_sequence(seq_id, [ord(seq_id)] * 7, max_tokens=12) for seq_id in "ab"]
    for seq in seqs:
        scheduler.add(seq)
    run_to_end(scheduler, runner)
    first, second = seqs
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)
    assert first.output_token_ids == second.output_token_ids == list(range(7, 19))
    assert scheduler.totals.preemptions == 1
    # 11 tokens are known then, in 3 blocks: a full host pool means that they are computed again.
    is_swapped = num_host_blocks == 8
    assert scheduler.totals.preemptions_swap == is_swapped
    assert scheduler.totals.blocks_swapped_out == 3 * is_swapped


def test_nobody_is_admitted_while_somebody_is_preempted() -> None:
    scheduler, runner = make_scheduler(6), CountingRunner()
    for seq_id in "ab":
        scheduler.add(make_sequence(seq_id, [ord(seq_id)] * 7, max_tokens=12))
    while scheduler.totals.preemptions == 0:
        step(scheduler, runner)
    late = make_sequence("late", [1], max_tokens=1)
    scheduler.add(late)
    while scheduler._preemption.stopped:
        assert late.status is Status.WAITING
        step(scheduler, runner)
    run_to_end(scheduler, runner)
    assert late.num_output_tokens == 1


def test_a_filling_sequence_is_no_victim() -> None:
    scheduler, runner = make_scheduler(6), CountingRunner()
    running = make_sequence("a", [1] * 7, max_tokens=16)
    filling = make_sequence("b", [2] * 7, is_pulled=True)
    scheduler.add(running)
    step(scheduler, runner)
    scheduler.add(filling)
    while running.status is not Status.PREEMPTED:
        step(scheduler, runner)
    assert filling.status is Status.FILLING
    assert len(filling.block_ids) == 2
    runner.fill(filling.block_ids, filling.token_ids, range(7))
    scheduler.end_pull("b")
    scheduler.join("b", 5)
    run_to_end(scheduler, runner)
    assert running.num_output_tokens == 16


def test_a_leased_sequence_is_no_victim_and_has_all_it_needs() -> None:
    scheduler, runner = make_scheduler(8), CountingRunner()
    other = make_sequence("a", [1] * 7, max_tokens=14)
    leased = make_sequence("b", [2] * 7, max_tokens=12, is_leased=True)
    scheduler.add(other)
    scheduler.add(leased)
    while not leased.is_finished:
        step(scheduler, runner)
    assert (other.num_preemptions, leased.num_preemptions) == (1, 0)
    assert len(leased.block_ids) == 5
    scheduler.release("b")
    run_to_end(scheduler, runner)
    assert other.num_output_tokens == 14


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", POLICIES)
def test_random_traffic_over_a_tiny_pool_always_ends(policy: str, seed: int) -> None:
    """Arrivals, cancels, pulls, leases; invariants hold after every step (see counting.py)."""
    has_weak_keys = seed % 2 == 1
    traffic = Traffic(random.Random(seed), weak_key if has_weak_keys else block_key, policy)
    for _ in range(400):
        traffic.act()
        step(traffic.scheduler, traffic.runner)
        traffic.observe()
    traffic.drain()
    assert traffic.scheduler.pool.num_held == 0
    assert traffic.scheduler.roster.by_id == {}
    assert traffic.num_finished > 10
    totals = traffic.scheduler.totals
    assert totals.preemptions > 0
    # A small host pool is full at times, and then swap means recompute.
    assert (totals.preemptions_swap > 0) == (policy != "recompute")
    assert 0 <= totals.blocks_swapped_in <= totals.blocks_swapped_out
    if traffic.swap is not None:
        assert traffic.swap.pool.num_held == 0
    assert (traffic.scheduler.prefix_cache.num_collisions > 0) == has_weak_keys


@pytest.mark.slow
def test_ten_thousand_random_requests() -> None:
    """pytest -m slow tests/engine/test_preemption.py"""
    num_requests = num_finished = seed = 0
    while num_requests < 10_000:
        key, policy = weak_key if seed % 2 else block_key, POLICIES[seed % 3]
        traffic = Traffic(random.Random(f"many/{seed}"), key, policy)
        for _ in range(2000):
            traffic.act()
            step(traffic.scheduler, traffic.runner)
            traffic.observe()
        traffic.drain()
        assert traffic.scheduler.pool.num_held == 0
        assert traffic.scheduler.roster.by_id == {} and traffic.scheduler.num_active == 0
        assert traffic.swap is None or traffic.swap.pool.num_held == 0
        num_requests += traffic.scheduler.totals.requests
        num_finished += traffic.num_finished
        seed += 1
    print(f"{num_requests} requests over {seed} pools, {num_finished} ran to their end")


def weak_key(group: bytes, parent: BlockKey, token_ids: Ids[int]) -> BlockKey:
    """2 bits (C05): nearly every block collides, and CountingRunner sees every wrong hit."""
    return BlockKey(bytes([block_key(group, parent, token_ids)[0] % 4]))


def make_swap(
    runner: CountingRunner, num_blocks: int, cost: PreemptionCost | None = None
) -> SwapSpace | None:
    return SwapSpace(runner, num_blocks, 4, cost) if num_blocks else None


class Coin(PreemptionCost):
    """Either is cheaper, as it falls."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(4)
        self._rng = rng

    def favours_swap(self, seqs: Iterable[Sequence], pool: BlockPool) -> bool:
        super().favours_swap(seqs, pool)
        return self._rng.random() < 0.5


class Traffic:
    """Random callers of one scheduler; a vocabulary of 2 makes nearly every prefix shared."""

    def __init__(self, rng: random.Random, key_function: KeyFunction, policy: str) -> None:
        self.runner = CountingRunner()
        self.swap: SwapSpace | None = None
        if policy != "recompute":
            cost = Coin(rng) if policy == "either" else None
            self.swap = make_swap(self.runner, rng.randrange(3, 12), cost)
        self.scheduler: Scheduler = make_scheduler(
            num_blocks=rng.randrange(6, 14),
            max_num_seqs=rng.randrange(3, 8),
            max_num_batched_tokens=rng.randrange(7, 30),
            key_function=key_function,
            swap=self.swap,
        )
        self.num_finished = 0
        self._rng = rng
        self._seqs: dict[str, Sequence] = {}
        self._pulled: set[str] = set()
        self._copying: set[str] = set()  # those whose pull has not ended, released ones too

    def act(self) -> None:
        rng = self._rng
        if rng.random() < 0.4:
            self._add(f"s{self.scheduler.totals.requests}")
        for seq in list(self._seqs.values()):
            if seq.status is Status.FILLING and rng.random() < 0.3:
                self._join(seq)
            if rng.random() < 0.01:
                self._release(seq.seq_id)
            elif seq.sampling.n > 1 and seq.beams is None and rng.random() < 0.03:
                self._stop(seq.seq_id)
        for seq_id in sorted(self._copying):
            if rng.random() < 0.3:
                self._end_pull(seq_id)
        check_blocks(self.scheduler)

    def observe(self) -> None:
        for seq in list(self._seqs.values()):
            if seq.status is Status.FILLING and seq.seq_id not in self._pulled:
                self._pulled.add(seq.seq_id)
                self._copying.add(seq.seq_id)
            if self._has_ended(seq):
                if seq.is_finished:  # else its first sample was stopped, or it is a beam
                    assert seq.num_output_tokens == seq.sampling.max_tokens
                self.num_finished += 1
                if not seq.is_leased or self._rng.random() < 0.3:
                    self._release(seq.seq_id)

    def drain(self) -> None:
        for _ in range(3000):
            if not self._seqs:
                break
            for seq in list(self._seqs.values()):
                if seq.status is Status.FILLING:
                    self._join(seq)
                if seq.is_leased and self._has_ended(seq):
                    self._release(seq.seq_id)
            for seq_id in list(self._copying):
                self._end_pull(seq_id)
            step(self.scheduler, self.runner)
            self.observe()
        for seq_id in list(self._copying):
            self._end_pull(seq_id)
        assert not self._seqs, f"stuck: {self.scheduler.load()}"

    def _has_ended(self, seq: Sequence) -> bool:
        is_leased = seq.is_leased and seq.status is Status.FINISHED
        return is_leased or seq.seq_id not in self.scheduler.roster.by_id

    def _add(self, seq_id: str) -> None:
        rng = self._rng
        capacity = self.scheduler.limits.max_model_len
        length = rng.randrange(1, capacity // 2)
        max_tokens = rng.randrange(1, min(24, capacity - length + 1))
        kind = rng.choice(["plain", "plain", "pulled", "leased"])
        prompt = [rng.randrange(2) for _ in range(length)]
        fields = {"is_pulled": kind == "pulled", "is_leased": kind == "leased"}
        n = rng.randrange(1, 5) if rng.random() < 0.5 else 1
        beams = BeamSearch(n, rng.choice((0.0, 1.0))) if n > 1 and rng.random() < 0.4 else None
        if kind == "leased" and n > 1:
            max_tokens = 1  # as prefill workers ask for: samples and beams go on elsewhere
        seq = make_sequence(seq_id, prompt, max_tokens, n, beams, **fields)
        try:
            self.scheduler.check(seq)
        except ValueError:  # so many rows do not fit
            seq = make_sequence(seq_id, prompt, max_tokens, **fields)
        self._seqs[seq_id] = seq
        self.scheduler.add(seq)

    def _join(self, seq: Sequence) -> None:
        arriving = range(seq.num_computed_tokens, seq.num_tokens)
        self.runner.fill(seq.block_ids, seq.token_ids, arriving)
        if seq.beams is not None:
            candidates = seq.beams.candidates(torch.randn(1, 4))
            self.scheduler.join(seq.seq_id, candidates)
            return
        first = [seq.num_tokens + 1000 * index for index in range(seq.sampling.n)]
        self.scheduler.join(seq.seq_id, *first)

    def _stop(self, seq_id: str) -> None:
        """A stop string ended one of the samples, the first one perhaps."""
        lead = self._seqs[seq_id]
        sample = self._rng.randrange(lead.sampling.n)
        self.scheduler.stop(seq_id, {sample})
        if seq_id not in self.scheduler.roster.by_id:
            del self._seqs[seq_id]

    def _end_pull(self, seq_id: str) -> None:
        self._copying.discard(seq_id)
        self.scheduler.end_pull(seq_id)

    def _release(self, seq_id: str) -> None:
        del self._seqs[seq_id]
        self.scheduler.release(seq_id)
