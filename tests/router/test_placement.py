"""The cost of section 5, as properties of `place`."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.router.placement import (
    DecodeCandidate,
    Demand,
    PrefillCandidate,
    place,
)
from octavo.rpc.errors import InvalidRequest, NoWorker

WEIGHT = 4.0
COUNTS = st.integers(0, 200)
CONTEXTS = st.sampled_from([512, 1024, 4096])
LAYOUTS = st.sampled_from(["float32", "bfloat16"])


def prefill(worker_id: str = "p", **fields: object) -> PrefillCandidate:
    base = PrefillCandidate(worker_id, "float32", 16, 4096, cached_blocks=0, queued_tokens=0)
    return replace(base, **fields)  # type: ignore[arg-type]


def decode(worker_id: str = "d", **fields: object) -> DecodeCandidate:
    base = DecodeCandidate(
        worker_id,
        "float32",
        16,
        4096,
        cached_blocks=0,
        active_blocks=0,
        num_sequences=0,
        local_prefill_max_tokens=0,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


prefills = st.lists(
    st.builds(
        prefill,
        layout=LAYOUTS,
        max_context_tokens=CONTEXTS,
        cached_blocks=COUNTS,
        queued_tokens=st.integers(0, 5000),
    ),
    max_size=5,
).map(lambda workers: [replace(w, worker_id=f"p{i}") for i, w in enumerate(workers)])
decodes = st.lists(
    st.builds(
        decode,
        layout=LAYOUTS,
        max_context_tokens=CONTEXTS,
        cached_blocks=COUNTS,
        active_blocks=COUNTS,
        num_sequences=st.integers(0, 20),
        local_prefill_max_tokens=st.sampled_from([0, 64]),
    ),
    max_size=5,
).map(lambda workers: [replace(w, worker_id=f"d{i}") for i, w in enumerate(workers)])
demands = st.builds(Demand, st.integers(1, 1500), st.integers(1, 500), st.booleans())
seeds = st.integers(0, 2**32)


def choose(demand: Demand, ps: list[PrefillCandidate], ds: list[DecodeCandidate], seed: int):  # type: ignore[no-untyped-def]
    return place(demand, ps, ds, sequence_weight=WEIGHT, draw=random.Random(seed))


def prefill_cost(demand: Demand, worker: PrefillCandidate) -> float:
    blocks = -(-demand.num_prompt_tokens // 16)
    return max(blocks - worker.cached_blocks, 0) + worker.queued_tokens / 16


def decode_cost(demand: Demand, worker: DecodeCandidate) -> float:
    blocks = -(-(demand.num_prompt_tokens + 1) // 16)
    new = max(blocks - worker.cached_blocks, 0)
    return worker.active_blocks + new + WEIGHT * worker.num_sequences


@given(demands, prefills, decodes, seeds)
def test_no_fitting_choice_is_cheaper(
    demand: Demand, ps: list[PrefillCandidate], ds: list[DecodeCandidate], seed: int
) -> None:
    try:
        placement = choose(demand, ps, ds, seed)
    except (NoWorker, InvalidRequest):
        return
    by_id: dict[str, PrefillCandidate | DecodeCandidate] = {w.worker_id: w for w in ps}
    by_id |= {w.worker_id: w for w in ds}
    p = by_id[placement.prefill_id] if placement.prefill_id else None
    d = by_id[placement.decode_id] if placement.decode_id else None
    fitting_ps = [w for w in ps if w.max_context_tokens > demand.num_prompt_tokens]
    need = demand.num_prompt_tokens + demand.max_tokens
    fitting_ds = [w for w in ds if w.max_context_tokens >= need]
    if isinstance(p, PrefillCandidate) and isinstance(d, DecodeCandidate):
        assert p.layout == d.layout and p in fitting_ps and d in fitting_ds
        cost = prefill_cost(demand, p) + decode_cost(demand, d)
        pairs = [(a, b) for a in fitting_ps for b in fitting_ds if a.layout == b.layout]
        assert cost == min(prefill_cost(demand, a) + decode_cost(demand, b) for a, b in pairs)
    elif isinstance(p, PrefillCandidate):
        assert demand.max_tokens == 1
        assert prefill_cost(demand, p) == min(prefill_cost(demand, w) for w in fitting_ps)
    else:
        assert isinstance(d, DecodeCandidate) and demand.may_prefill_locally
        assert decode_cost(demand, d) == min(decode_cost(demand, w) for w in fitting_ds)
        usable = min(d.cached_blocks, (demand.num_prompt_tokens - 1) // 16) * 16
        assert demand.num_prompt_tokens - usable <= d.local_prefill_max_tokens


@given(demands, prefills, decodes, seeds)
def test_refusals_have_a_reason(
    demand: Demand, ps: list[PrefillCandidate], ds: list[DecodeCandidate], seed: int
) -> None:
    need = demand.num_prompt_tokens + demand.max_tokens
    fitting_ps = [w for w in ps if w.max_context_tokens > demand.num_prompt_tokens]
    fitting_ds = [w for w in ds if w.max_context_tokens >= need]
    try:
        choose(demand, ps, ds, seed)
    except InvalidRequest as error:
        assert not fitting_ps or not fitting_ds
        assert error.field and "context" in error.message
    except NoWorker:
        layouts = {w.layout for w in fitting_ps} & {w.layout for w in fitting_ds}
        assert not ps or not ds or not layouts
    else:
        assert fitting_ps or fitting_ds


@given(demands, prefills, decodes, seeds, seeds)
def test_more_overlap_never_costs_a_worker_its_place(
    demand: Demand, ps: list[PrefillCandidate], ds: list[DecodeCandidate], seed: int, pick: int
) -> None:
    demand = replace(demand, may_prefill_locally=False)
    try:
        placement = choose(demand, ps, ds, seed)
    except (NoWorker, InvalidRequest):
        return
    if placement.prefill_id is None:
        return
    better = [
        replace(w, cached_blocks=w.cached_blocks + 1, queued_tokens=max(w.queued_tokens - 16, 0))
        if w.worker_id == placement.prefill_id
        else w
        for w in ps
    ]
    chosen = next(w for w in better if w.worker_id == placement.prefill_id)
    again = choose(demand, better, ds, pick)
    rival = next(w for w in better if w.worker_id == again.prefill_id)
    assert again.prefill_id == placement.prefill_id or (
        rival.layout != chosen.layout or prefill_cost(demand, rival) == prefill_cost(demand, chosen)
    )


def test_equals_are_drawn_at_random() -> None:
    ps = [prefill(f"p{i}") for i in range(3)]
    ds = [decode(f"d{i}") for i in range(3)]
    chosen = {choose(Demand(100, 10), ps, ds, seed) for seed in range(200)}
    assert len(chosen) == 9


def test_queue_outweighs_overlap() -> None:
    warm, cold = prefill("warm", cached_blocks=60, queued_tokens=2000), prefill("cold")
    assert choose(Demand(1000, 10), [warm, cold], [decode()], 0).prefill_id == "cold"
    warm = replace(warm, queued_tokens=900)
    assert choose(Demand(1000, 10), [warm, cold], [decode()], 0).prefill_id == "warm"


def test_short_tail_needs_no_prefill_worker_connected() -> None:
    local = decode(local_prefill_max_tokens=64, cached_blocks=60)
    assert choose(Demand(1000, 10), [], [local], 0).prefill_id is None
    with pytest.raises(NoWorker, match="octavo prefill-worker"):
        choose(Demand(1100, 10), [], [local], 0)
    with pytest.raises(NoWorker, match="octavo prefill-worker"):
        choose(Demand(1000, 10, may_prefill_locally=False), [], [local], 0)


def test_no_decode_worker_is_said_with_a_hint() -> None:
    with pytest.raises(NoWorker, match="octavo decode-worker"):
        choose(Demand(100, 10), [prefill()], [], 0)


def test_request_too_long_for_every_worker_names_the_limit() -> None:
    small = [decode("a", max_context_tokens=128), decode("b", max_context_tokens=256)]
    with pytest.raises(InvalidRequest, match="more than 256") as refused:
        choose(Demand(200, 100), [prefill()], small, 0)
    assert refused.value.field == "sampling.max_tokens"
    assert choose(Demand(200, 56), [prefill()], small, 0).decode_id == "b"


def test_unlike_layouts_never_meet() -> None:
    with pytest.raises(NoWorker, match="same KV layout"):
        choose(Demand(100, 10), [prefill()], [decode(layout="bfloat16")], 0)
    busy = decode("busy", active_blocks=500)
    other = decode("other", layout="bfloat16")
    assert choose(Demand(100, 10), [prefill()], [busy, other], 0).decode_id == "busy"
