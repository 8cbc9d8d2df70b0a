"""int8 engines generate what float32 generates almost everywhere, and the same in every batch."""

from pathlib import Path

import pytest

from checkpoints import tiny_llama, tiny_mistral, tiny_qwen2, tiny_qwen3
from octavo import LLM, SamplingParams

NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPTS = [[5 + (7 * i + 3 * j) % 370 for j in range(3 + 5 * i)] for i in range(12)]
MOST = 0.8  # random weights, vocabulary of 384: nearer ties than a trained model's
MAKERS = [tiny_llama, tiny_mistral, tiny_qwen2, tiny_qwen3]


def outputs(path: Path, prompts: list[list[int]], **settings: object) -> list[list[int]]:
    defaults: dict[str, object] = {"dtype": "float32", "device": "cpu", "num_blocks": 256}
    llm = LLM(str(path), **defaults | settings)
    found = llm.generate(prompts, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
    return [list(output.outputs[0].token_ids) for output in found]


def next_tokens(path: Path, sequences: list[list[int]], **settings: object) -> list[int]:
    defaults: dict[str, object] = {"dtype": "float32", "device": "cpu", "num_blocks": 1024}
    llm = LLM(str(path), **defaults | settings)
    one = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    found = llm.generate(sequences, one, use_tqdm=False)  # type: ignore[arg-type]
    return [output.outputs[0].token_ids[0] for output in found]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_greedy_tokens_agree_with_float32(tmp_path: Path, make, dtype: str) -> None:  # type: ignore[no-untyped-def]
    """Each place is judged after float32's own tokens, so that one mismatch counts once."""
    path = make(tmp_path / "model")
    expected = outputs(path, PROMPTS)
    prefixes = [p + e[:i] for p, e in zip(PROMPTS, expected, strict=True) for i in range(len(e))]
    wanted = [token for e in expected for token in e]
    got = next_tokens(path, prefixes, quantization="int8", dtype=dtype)
    same = sum(a == b for a, b in zip(got, wanted, strict=True)) / len(wanted)
    assert same >= MOST, same


def test_a_prompt_gives_the_same_tokens_alone_in_a_crowd_and_in_chunks(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model")
    crowd = outputs(path, PROMPTS, quantization="int8")
    assert crowd == [outputs(path, [prompt], quantization="int8")[0] for prompt in PROMPTS]
    assert crowd == outputs(path, PROMPTS, quantization="int8", max_num_batched_tokens=7)
