"""Sequences with LoRA adapters give the tokens of `peft`, whoever else is in their batch."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import FAMILIES, tiny_llama
from checkpoints.adapters import adapted_model, adapted_run, tiny_adapter
from engine.tiny import GREEDY, make_sequence, run, tiny_engine
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.errors import AdapterConflict, TooManyAdapters, UnknownAdapter
from octavo.engine.sequence import Sequence
from octavo.sampling_params import SamplingParams

NEAR_TIE = 1e-4
LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "attention": {"r": 3, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "rslora": {"r": 6, "use_rslora": True, "target_modules": ["k_proj", "o_proj", "up_proj"]},
}
PATTERNS: dict[str, Any] = {
    "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 5},
    "alpha_pattern": {"model.layers.0.self_attn.v_proj": 3, "gate_proj": 12},
    "layers_to_transform": [1],
}


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [3 + (7 * i * i + 31 * i + 101 * seed) % 375 for i in range(length)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("adapted") / "llama")


@pytest.fixture(scope="module")
def adapters(llama: Path) -> dict[str, Path]:
    """Folders by name, of different ranks, scales and targets."""
    return {
        name: tiny_adapter(llama, llama.parent / name, seed, **settings)
        for seed, (name, settings) in enumerate(ADAPTERS.items())
    }


def cpu_engine(model: Path, adapters: dict[str, Path], **settings: Any) -> Engine:
    """With the CPU's own kernels."""
    base = {"dtype": "float32", "device": "cpu", "num_blocks": 256} | settings
    return build_engine(EngineConfig(model=str(model), lora=adapters, **base))


def sequences(
    engine: Engine, names: list[str | None], prompts: list[list[int]], tag: str = ""
) -> list[Sequence]:
    made = []
    for index, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        seq = make_sequence(f"{tag}{index}", prompt, LONG)
        seq.adapter = engine.adapters.named(name) if name else None
        made.append(seq)
    return made


def check(
    base: Path, adapters: dict[str, Path], seqs: list[Sequence], names: list[str | None]
) -> None:
    for seq, name in zip(seqs, names, strict=True):
        prompt = seq.token_ids[: seq.num_prompt_tokens]
        wanted = adapted_run(
            base, adapters[name] if name else None, prompt, seq.sampling.max_tokens
        )
        rows = zip(seq.output_token_ids, wanted.token_ids, wanted.margins, strict=True)
        for ours, theirs, margin in rows:
            if ours != theirs and margin < NEAR_TIE:
                break
            assert ours == theirs, (name, len(prompt), margin)


def test_a_mixed_batch_is_exact_cold_cached_and_preempted(
    llama: Path, adapters: dict[str, Path]
) -> None:
    lengths = (1, 15, 16, 17, 33, 70)
    pairs = list(itertools.product([*adapters, None], lengths))
    names = [name for name, _ in pairs]
    prompts = [prompt_of(length, seed=length) for _, length in pairs]
    engine = cpu_engine(llama, adapters, max_num_batched_tokens=48)
    for tag in ("cold", "hit"):
        seqs = sequences(engine, names, prompts, tag)
        run(engine, seqs)
        check(llama, adapters, seqs, names)
        for seq in seqs:
            found = (seq.num_prompt_tokens - 1) // 16 * 16 if tag == "hit" else 0
            assert seq.num_cached_tokens == found
    alone = sequences(engine, [names[0]], [prompt_of(40, seed=5)], "alone")
    run(engine, alone)
    check(llama, adapters, alone, [names[0]])
    tight = cpu_engine(llama, adapters, num_blocks=16)
    seqs = sequences(tight, names, prompts)
    run(tight, seqs)
    assert tight.counters().preemptions > 0
    check(llama, adapters, seqs, names)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_every_target_and_pattern(family: str, tmp_path: Path) -> None:
    base = FAMILIES[family](tmp_path / "model")
    adapters = {
        "all": tiny_adapter(base, tmp_path / "all"),
        "patterns": tiny_adapter(base, tmp_path / "patterns", 7, **PATTERNS),
    }
    engine = tiny_engine(base, lora=adapters)
    names: list[str | None] = ["all", None, "patterns"]
    seqs = sequences(engine, names, [prompt_of(30)] * 3)
    run(engine, seqs)
    check(base, adapters, seqs, names)
    assert len({tuple(seq.output_token_ids) for seq in seqs}) == 3, "the adapters change nothing"


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_a_row_does_not_depend_on_its_batch(
    llama: Path, adapters: dict[str, Path], settings: dict[str, Any]
) -> None:
    engine = cpu_engine(llama, adapters, **settings)
    names: list[str | None] = [*adapters, None] * 3
    prompts = [prompt_of(11 + i, seed=i) for i in range(len(names))]
    together = run(engine, sequences(engine, names, prompts, "together"))
    alone = []
    for index, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        fresh = sequences(engine, [name], [prompt], f"alone{index}")
        fresh[0].group_key = bytes([index]) * 32  # nothing of the first run is found
        alone += run(engine, fresh)
    assert together == alone
    if settings:  # beside weights of less precision the adapter still does its part
        plain = run(engine, sequences(engine, [None], [prompts[0]], "plain"))
        assert plain != alone[:1]


def test_base_rows_are_replayed_and_adapted_ones_are_not(
    llama: Path, adapters: dict[str, Path]
) -> None:
    engine = cpu_engine(llama, adapters)
    model: Any = engine.runner._model  # type: ignore[attr-defined]
    run(engine, sequences(engine, ["all"], [prompt_of(5)], "a"))
    assert model.num_replays == 0
    run(engine, sequences(engine, [None], [prompt_of(5)], "b"))
    assert model.num_replays > 0 or not model._is_recordable
    before = model.num_replays
    run(engine, sequences(engine, ["all", None], [prompt_of(5)] * 2, "c"))
    assert model.num_replays == before


def test_prompt_rows_in_the_middle_of_a_prompt_go_through_the_adapter(
    llama: Path, adapters: dict[str, Path]
) -> None:
    """With log-probabilities of the prompt, the last layer keeps rows of chunks."""
    engine = cpu_engine(llama, adapters, max_num_batched_tokens=16)
    sampling = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    scored, told = [], {}
    for index, name in enumerate([*adapters, None]):
        seq = make_sequence(f"{index}", prompt_of(50), sampling)
        seq.adapter = engine.adapters.named(name) if name else None
        engine.scheduler.add(seq)
        scored.append(seq.seq_id)
        told[seq.seq_id] = list[float]()
    while engine.scheduler.has_work:
        for output in engine.step():
            if output.prompt_logprobs is not None:
                told[output.seq_id] += output.prompt_logprobs.logprobs
    for seq_id, name in zip(scored, [*adapters, None], strict=True):
        model = adapted_model(llama, adapters[name] if name else None)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt_of(50)])).logits[0]
        wanted = torch.log_softmax(logits, -1)[range(49), prompt_of(50)[1:]]
        assert told[seq_id] == pytest.approx(wanted.tolist(), abs=1e-4)


def test_names_are_loaded_once_kept_by_content_and_limited(
    llama: Path, adapters: dict[str, Path]
) -> None:
    engine = tiny_engine(llama, max_loras=2)
    loaded = engine.adapters
    first = loaded.load("a", adapters["all"])
    assert loaded.load("a", adapters["all"]) is first
    with pytest.raises(AdapterConflict, match="'a' is loaded with other weights"):
        loaded.load("a", adapters["rslora"])
    assert loaded.load("same", adapters["all"]).fingerprint == first.fingerprint
    with pytest.raises(TooManyAdapters, match="max_loras is 2"):
        loaded.load("c", adapters["rslora"])
    running = sequences(engine, ["a"], [prompt_of(20)])
    engine.scheduler.add(running[0])
    engine.step()
    loaded.unload("a")
    with pytest.raises(UnknownAdapter, match="'a' is not loaded; loaded: 'same'"):
        loaded.named("a")
    other = loaded.load("a", adapters["rslora"])
    assert other.fingerprint != first.fingerprint
    while engine.scheduler.has_work:
        engine.step()
    check(llama, adapters, running, ["all"])


def test_equal_names_of_other_weights_share_no_block(
    llama: Path, adapters: dict[str, Path]
) -> None:
    engine = tiny_engine(llama)
    prompt = prompt_of(40)

    def cached(tag: str, name: str | None) -> int:
        (seq,) = sequences(engine, [name], [prompt], tag)
        seq.sampling = GREEDY
        run(engine, [seq])
        return seq.num_cached_tokens

    engine.adapters.load("x", adapters["all"])
    assert [cached("1", None), cached("2", "x"), cached("3", "x")] == [0, 0, 32]
    engine.adapters.unload("x")
    engine.adapters.load("x", adapters["rslora"])
    assert cached("4", "x") == 0
    engine.adapters.unload("x")
    engine.adapters.load("y", adapters["all"])  # the same weights by another name
    assert [cached("5", "y"), cached("6", None)] == [32, 32]
