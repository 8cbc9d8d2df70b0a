"""`LLM` with LoRA adapters: one for all prompts or one each, loaded and unloaded in between."""

from pathlib import Path

import pytest

from checkpoints import tiny_llama
from checkpoints.adapters import adapted_run, tiny_adapter
from octavo import LLM, SamplingParams
from octavo.engine.errors import UnknownAdapter

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = [5 + 7 * i % 350 for i in range(40)]


def test_prompts_choose_their_adapters(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "llama")
    first, second = (tiny_adapter(base, tmp_path / f"{seed}", seed) for seed in (1, 2))
    llm = LLM(str(base), dtype="float32", device="cpu", num_blocks=64, lora={"first": first})
    llm.load_adapter("second", str(second))
    wanted = {
        name: adapted_run(base, folder, PROMPT, 12).token_ids
        for name, folder in (("first", first), ("second", second), (None, None))
    }

    def ask(prompts: list[list[int]], lora_adapter: str | list[str | None]) -> list[list[int]]:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False, lora_adapter=lora_adapter)
        return [output.outputs[0].token_ids for output in outputs]

    names = ["first", None, "second", "first"]
    assert ask([PROMPT] * 4, names) == [wanted[name] for name in names]
    assert ask([PROMPT] * 2, "second") == [wanted["second"]] * 2
    (chat,) = llm.chat(
        [{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False, lora_adapter="first"
    )
    prompt = chat.prompt_token_ids
    assert chat.outputs[0].token_ids == adapted_run(base, first, prompt, 12).token_ids
    with pytest.raises(ValueError, match="2 prompts came with 1 lora_adapter names"):
        ask([PROMPT] * 2, ["first"])
    llm.unload_adapter("first")
    with pytest.raises(UnknownAdapter, match="'first' is not loaded; loaded: 'second'"):
        ask([PROMPT], "first")
    assert llm.engine.scheduler.pool.num_held == 0
