"""Sequences with a grammar in a batch: held to it, and no concern of the others."""

import json
import random
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch

from bench_path import check_outputs, random_requests, run_batch
from checkpoints import scripted, tiny_llama
from checkpoints.tokenizer import IM_END
from engine.tiny import make_sequence, tiny_engine
from octavo import LLM, SamplingParams
from octavo.engine.errors import NoTokenLeft
from octavo.engine.logit_rules import unpack_on_device

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 9999},
        "b": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
        "c": {"type": "string", "maxLength": 8},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
PROMPT = [5 + 7 * i % 350 for i in range(37)]
CONSTRAINTS: list[dict[str, object]] = [
    {"json_schema": SCHEMA},
    {"json_schema": json.dumps(SCHEMA), "temperature": 0.0},
    {"regex": "[a-f]{3,40}( [0-9]{2}){1,3}"},
    {"ebnf_grammar": 'start: "x" ("," N)+\nN: /[0-9]{2}/'},
    {"choice": ["the prefill worker", "the decode worker", "🙂"]},
    {"json_object": True},
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


def make_llm(model: Path, num_blocks: int = 512) -> LLM:
    return LLM(str(model), dtype="float32", device="cpu", num_blocks=num_blocks, num_threads=1)


def params(number: int, **fields: object) -> SamplingParams:
    return SamplingParams(**{"seed": number, "max_tokens": 60, **fields})  # type: ignore[arg-type]


def test_random_schemas_are_held_to_and_what_is_cut_says_so(llama: Path) -> None:
    """A small run of bench/structured_output.py."""
    asked = random_requests(64, max_tokens=120, seed=1)
    outputs = run_batch(make_llm(llama), asked)
    assert check_outputs(outputs, asked) == []
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons.count("stop") > 32 and "length" in reasons


def test_a_batch_of_all_kinds_gives_what_each_gives_alone(llama: Path) -> None:
    asked = [params(i, **fields) for i, fields in enumerate([*CONSTRAINTS, {}, {}, {"top_k": 3}])]
    llm = make_llm(llama)
    alone = [llm.generate(PROMPT, each, use_tqdm=False)[0].outputs[0].token_ids for each in asked]
    for num_blocks in (512, 10):
        llm = make_llm(llama, num_blocks)
        outputs = llm.generate([PROMPT] * len(asked), asked, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == alone
        assert (llm.counters().preemptions > 0) == (num_blocks == 10)
    choice = outputs[4].outputs[0]
    assert choice.text in ("the prefill worker", "the decode worker", "🙂")
    assert (choice.finish_reason, choice.token_ids[-1]) == ("stop", IM_END)
    for output, schema in ((outputs[0], SCHEMA), (outputs[5], {"type": "object"})):
        if output.outputs[0].finish_reason == "stop":
            jsonschema.validate(json.loads(output.outputs[0].text), schema)


def test_a_complete_output_ends_though_the_model_would_go_on(tmp_path: Path) -> None:
    """C30: the first token completes the grammar; the model wants "b" for ever."""
    b = 3 + ord("b") - 33  # bytes from "!" on stand first in the alphabet
    llm = make_llm(scripted(tmp_path / "m", {}, default=b), 64)
    assert llm.tokenizer.decode([b]) == "b"
    for fields, text, reason in (
        ({"choice": ["b"]}, "b", "stop"),
        ({"regex": "b{3}"}, "bbb", "stop"),
        ({"regex": "b*"}, "b" * 20, "length"),
        ({"regex": "b{3}", "max_tokens": 3}, "bbb", "length"),
        ({"choice": ["b"], "max_tokens": 1}, "b", "length"),
        ({"regex": "b{3}", "min_tokens": 3}, "bbb", "stop"),
        ({"regex": "(b|c){3}", "allowed_token_ids": [b + 1, IM_END]}, "ccc", "stop"),
        ({"regex": "b{9}", "stop": ["bb"]}, "", "stop"),
    ):
        (output,) = llm.generate(
            PROMPT, params(0, **{"temperature": 0.0, "max_tokens": 20, **fields}), use_tqdm=False
        )
        one = output.outputs[0]
        assert (one.text, one.finish_reason) == (text, reason), fields
        assert (one.token_ids[-1] == IM_END) == (reason == "stop" and "stop" not in fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"choice": ["b"], "min_tokens": 9}, "output token 1: choice leaves few, and min_tokens"),
        ({"regex": "x", "allowed_token_ids": [5, IM_END]}, "output token 0: regex leaves few"),
    ],
)
def test_rules_that_leave_no_token_end_their_sequence_by_name(
    llama: Path, fields: dict[str, object], why: str
) -> None:
    llm = make_llm(llama)
    with pytest.raises(NoTokenLeft, match=why):
        llm.generate(PROMPT, params(0, **fields), use_tqdm=False)
    assert llm.generate(PROMPT, params(0), use_tqdm=False)[0].outputs[0].token_ids
    assert llm.engine.scheduler.pool.num_held == 0


def test_bits_are_unpacked_on_a_gpu_as_on_the_host() -> None:
    bits = np.random.default_rng(0).integers(0, 256, size=(5, 48), dtype=np.uint8)
    expected = np.unpackbits(bits, axis=1, count=377, bitorder="little").astype(bool)
    found = unpack_on_device(torch.from_numpy(bits), 377)
    assert found.dtype == torch.bool and (found.numpy() == expected).all()


def test_a_constraint_without_its_grammar_is_refused_at_the_engines_edge(llama: Path) -> None:
    engine = tiny_engine(llama)
    with pytest.raises(ValueError, match="comes with its compiled grammar"):
        engine.check(make_sequence("a", PROMPT, params(0, regex="a")))


def test_log_probabilities_are_the_models_own(llama: Path) -> None:
    llm = make_llm(llama)
    held, free = llm.generate(
        [PROMPT] * 2,
        [params(0, choice=["🙂"], logprobs=3), params(0, logprobs=3)],
        use_tqdm=False,
    )
    held_first, free_first = held.outputs[0].logprobs, free.outputs[0].logprobs
    assert held_first is not None and free_first is not None
    assert held_first[0].top == free_first[0].top
    assert held_first[0].token_id not in [i for i, _ in held_first[0].top]


def test_bad_grammars_are_named_by_llm(llama: Path) -> None:
    llm = make_llm(llama)
    for fields, name in (
        ({"json_schema": {"if": {}}}, "json_schema"),
        ({"regex": "("}, "regex"),
        ({"ebnf_grammar": "x"}, "ebnf_grammar"),
    ):
        with pytest.raises(ValueError, match=f"^{name} is no usable grammar"):
            llm.generate(PROMPT, params(0, **fields), use_tqdm=False)


def test_random_texts_never_break_a_crowd(llama: Path) -> None:
    """Different grammars in one batch, joining and leaving, over a pool that is too small."""
    rng = random.Random(4)
    asked = [params(i, **rng.choice([*CONSTRAINTS, {}])) for i in range(40)]
    outputs = make_llm(llama, 24).generate([PROMPT[: 1 + i % 30] for i in range(40)], asked, False)
    assert all(output.outputs[0].token_ids for output in outputs)
