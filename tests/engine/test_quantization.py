"""Quantised engines generate what float32 generates almost everywhere, the same in every batch."""

from pathlib import Path

import pytest

from checkpoints import tiny_llama, tiny_mistral, tiny_qwen2, tiny_qwen3
from checkpoints.gguf_file import write_gguf
from octavo import LLM, SamplingParams
from octavo.checkpoint.gguf import convert_gguf
from octavo.checkpoint.weights import WeightFiles
from octavo.engine.models.precision import Precisions
from octavo.kernels.select import UnsupportedQuantization

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


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_prompt_gives_the_same_tokens_alone_in_a_crowd_and_in_chunks(
    tmp_path: Path, quantization: str
) -> None:
    path = tiny_llama(tmp_path / "model")
    crowd = outputs(path, PROMPTS, quantization=quantization)
    assert crowd == [outputs(path, [p], quantization=quantization)[0] for p in PROMPTS]
    assert crowd == outputs(path, PROMPTS, quantization=quantization, max_num_batched_tokens=7)


@pytest.mark.parametrize(("file_type", "same_as"), [("Q8_0", "int8"), ("Q4_0", "int4")])
def test_blocks_of_a_gguf_file_are_used_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_type: str, same_as: str
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    source = tiny_llama(tmp_path / "source", tie_word_embeddings=False)
    file = write_gguf(source, tmp_path / "model.gguf", file_type)
    precisions = Precisions("gguf", WeightFiles(convert_gguf(file)))
    assert precisions.of([f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkv"]) == same_as
    assert precisions.of_head("lm_head.weight") == same_as
    expected = outputs(file, PROMPTS[:4])
    prefixes = [
        p + e[:i] for p, e in zip(PROMPTS[:4], expected, strict=True) for i in range(len(e))
    ]
    got = next_tokens(file, prefixes, quantization="gguf")
    wanted = [token for e in expected for token in e]
    # The weights are the same, only activations are rounded.
    assert sum(a == b for a, b in zip(got, wanted, strict=True)) / len(wanted) >= MOST


def test_gguf_precision_is_refused_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedQuantization, match="needs a GGUF file with Q8_0"):
        outputs(tiny_llama(tmp_path / "model"), PROMPTS[:1], quantization="gguf")
