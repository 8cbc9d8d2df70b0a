"""`LLM` in vLLM's shape: prompts in every form, text, stop strings, and nothing left behind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from checkpoints import (
    reference_generate,
    reference_logits,
    scripted,
    tiny_llama,
    tiny_tokenizer,
)
from octavo import LLM, SamplingParams
from octavo.engine.core_set import allowed_cores
from octavo.llm import RequestOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def llm(llama: Path) -> Iterator[LLM]:
    yield make_llm(llama)


def make_llm(path: Path, **settings: object) -> LLM:
    defaults: dict[str, object] = {"dtype": "float32", "device": "cpu", "num_blocks": 64}
    return LLM(str(path), **defaults | settings)


def generate(llm: LLM, *args: object) -> list[RequestOutput]:
    outputs = llm.generate(*args, use_tqdm=False)  # type: ignore[arg-type]
    assert llm.engine.scheduler.pool.num_held == 0
    return outputs


def test_every_form_of_a_prompt_gives_the_same_completion(llm: LLM, llama: Path) -> None:
    text = "The prefill worker"
    token_ids = llm.tokenizer.encode(text)
    forms = [text, token_ids, {"prompt": text}, {"prompt_token_ids": token_ids}]
    completions = [generate(llm, form, GREEDY)[0] for form in forms]
    completions += generate(llm, forms, GREEDY)
    expected = reference_generate(llama, token_ids, 8)
    for completion in completions:
        assert completion.prompt_token_ids == token_ids
        assert completion.outputs[0].token_ids == expected
    assert [c.prompt for c in completions[:4]] == [text, None, text, None]


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_any_number_of_threads_gives_the_same_tokens(llama: Path, quantization: str | None) -> None:
    prompts = [[5 + i] * (7 * i + 1) for i in range(6)]
    outputs = []
    for num_threads in (1, 2):
        llm = make_llm(llama, num_threads=num_threads, quantization=quantization)
        outputs.append([o.outputs[0].token_ids for o in generate(llm, prompts, GREEDY)])
    assert outputs[0] == outputs[1]
    if quantization is None:
        assert outputs[0] == [reference_generate(llama, prompt, 8) for prompt in prompts]


def test_the_caller_keeps_its_cores_and_torch_its_threads(llama: Path) -> None:
    cores, num_threads = allowed_cores(), torch.get_num_threads()
    llm = make_llm(llama, num_threads=2, quantization="int8")
    generate(llm, [5, 6, 7], GREEDY)
    with pytest.raises(ValueError):
        generate(llm, [999_999], GREEDY)
    assert (allowed_cores(), torch.get_num_threads()) == (cores, num_threads)


def test_outputs_stand_in_the_order_of_the_prompts(llm: LLM, llama: Path) -> None:
    prompts = [[5 + i] * (i + 1) for i in range(10)]
    params = [SamplingParams(temperature=0.0, max_tokens=10 - i) for i in range(10)]
    outputs = generate(llm, prompts, params)
    for i, output in enumerate(outputs):
        assert output.prompt_token_ids == prompts[i]
        assert output.outputs[0].token_ids == reference_generate(llama, prompts[i], 10 - i)


def test_a_second_time_the_prompt_is_cached(llm: LLM) -> None:
    prompt = list(range(100, 150))
    first, second = (generate(llm, prompt, GREEDY)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 48)
    assert first.outputs == second.outputs


def test_a_chat_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello world"}]
    (one,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert one.prompt_token_ids == llm.tokenizer.encode_chat(messages)
    assert [o.outputs for o in llm.chat([messages] * 2, GREEDY, use_tqdm=False)] == [
        one.outputs
    ] * 2


def test_a_chats_last_message_can_be_continued(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "The"}]
    options = {"continue_final_message": True, "chat_template_kwargs": {"unused": 1}}
    (one,) = llm.chat(messages, GREEDY, use_tqdm=False, **options)
    assert llm.tokenizer.decode(one.prompt_token_ids).endswith("assistant\nThe")


def test_a_seed_repeats_and_no_seed_does_not(llm: LLM) -> None:
    hot = {"temperature": 5.0, "max_tokens": 16, "ignore_eos": True}
    seeded = generate(llm, [[5, 6]] * 3, SamplingParams(seed=3, **hot))  # type: ignore[arg-type]
    assert len({tuple(output.outputs[0].token_ids) for output in seeded}) == 1
    free = generate(llm, [[5, 6]] * 3, SamplingParams(**hot))  # type: ignore[arg-type]
    assert len({tuple(output.outputs[0].token_ids) for output in free}) == 3


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([[5], []], GREEDY, "the prompt is empty"),
        ([5, 384], GREEDY, "token_ids must be 0 to 383, got 384"),
        ([5] * 2000, GREEDY, "at most 1023 fit"),
        ([5] * 1020, GREEDY, "max_tokens 8 and a prompt of 1020"),
        ([[5], [6]], [GREEDY], "2 prompts came with 1 sampling params"),
        ({"text": "x"}, GREEDY, "needs prompt or prompt_token_ids"),
        ([5], SamplingParams(stop_token_ids=(384,)), "stop_token_ids must be below"),
    ],
)
def test_what_cannot_run_is_refused_before_any_token(
    llm: LLM, prompts: object, params: object, message: str
) -> None:
    generated = llm.counters().tokens_generated
    with pytest.raises(ValueError, match=message):
        generate(llm, prompts, params)
    assert llm.counters().tokens_generated == generated
    assert not llm.engine.scheduler.has_work


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., LLM]:
    """An LLM that says exactly these pieces, then ends."""

    def make(*pieces: str) -> LLM:
        tokenizer = tiny_tokenizer(384)
        token_ids = [i for piece in pieces for i in tokenizer.encode(piece).ids]
        assert len(set(token_ids)) == len(token_ids), "a table knows one successor of a token"
        table = dict(zip([3, *token_ids], [*token_ids, 2], strict=True))
        return make_llm(scripted(tmp_path / "model", table, tokenizer=tokenizer))

    return make


def complete(llm: LLM, **sampling: object) -> RequestOutput:
    params = SamplingParams(temperature=0.0, max_tokens=40, **sampling)  # type: ignore[arg-type]
    return generate(llm, [3], params)[0]


def test_the_end_of_sequence_token_ends_without_text(script: Callable[..., LLM]) -> None:
    completion = complete(script("xyz")).outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (
        "xyz",
        "stop",
        None,
    )
    assert completion.token_ids[-1] == 2


@pytest.mark.parametrize("stop", ["Y", "XY", "YZ", "XYZ"])
def test_a_stop_string_cuts_the_text_and_ends_the_sequence(
    script: Callable[..., LLM], stop: str
) -> None:
    """C13, in process: the engine computes no step more than needed."""
    llm = script("WXYZabcdefghijk")
    completion = complete(llm, stop=(stop,)).outputs[0]
    assert completion.text == "WXYZ".split(stop)[0]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert llm.counters().tokens_generated == len(completion.token_ids)
    kept = complete(llm, stop=(stop,), include_stop_text=True).outputs[0]
    assert kept.text == "WXYZ".split(stop)[0] + stop


def test_text_held_for_a_stop_string_that_never_ends_is_given(
    script: Callable[..., LLM],
) -> None:
    """C14."""
    llm = script("ABCDEF")
    assert complete(llm, stop=("EFX",)).outputs[0].text == "ABCDEF"
    params = SamplingParams(temperature=0.0, max_tokens=5, stop=("EFX",))
    completion = generate(llm, [3], params)[0].outputs[0]
    assert completion.finish_reason == "length"
    assert "ABCDEF".startswith(completion.text) and completion.text


def test_a_stop_token_is_named(script: Callable[..., LLM]) -> None:
    llm = script("WXYZ")
    (token_id,) = llm.tokenizer.encode("Y")
    completion = complete(llm, stop_token_ids=(token_id,)).outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", token_id)


def test_defaults_come_from_the_models_generation_config(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model")
    (path / "generation_config.json").write_text('{"temperature": 0.25, "top_k": 7}')
    params = make_llm(path).default_sampling_params()
    assert (params.temperature, params.top_k, params.top_p) == (0.25, 7, 1.0)


def test_an_interrupt_leaves_nothing_held(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step

    def interrupted() -> object:
        step()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate(llm, [[5], [6]], GREEDY)
    assert llm.engine.scheduler.pool.num_held == 0
    assert len(generate(llm, [5], GREEDY)) == 1


def test_log_probabilities_stand_beside_their_tokens(llm: LLM, llama: Path) -> None:
    prompt = llm.tokenizer.encode("The prefill worker")
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, prompt_logprobs=0)
    (output,) = generate(llm, prompt, params)
    (one,) = output.outputs
    wanted = torch.log_softmax(reference_logits(llama, prompt + one.token_ids), dim=-1)
    assert one.logprobs is not None and output.prompt_logprobs is not None
    for row, token_id, found in zip(
        wanted[len(prompt) - 1 : -1], one.token_ids, one.logprobs, strict=True
    ):
        assert found.token_id == token_id == found.top[0][0]
        assert found.logprob == pytest.approx(float(row[token_id]), abs=1e-5)
        assert len(found.top) == 2
    first, *others = output.prompt_logprobs
    assert first is None and len(others) == len(prompt) - 1
    for row, token_id, scored in zip(wanted, prompt[1:], others, strict=False):
        assert scored is not None and scored.token_id == token_id and scored.top == []
        assert scored.logprob == pytest.approx(float(row[token_id]), abs=1e-5)
    (plain,) = generate(llm, prompt, GREEDY)
    assert plain.outputs[0].logprobs is None and plain.prompt_logprobs is None


def test_a_stop_string_cuts_the_log_probabilities_with_the_tokens(llm: LLM) -> None:
    for stop in ("e", "a"):
        params = SamplingParams(seed=5, max_tokens=40, stop=stop, logprobs=1, ignore_eos=True)
        (output,) = generate(llm, "The prefill worker", params)
        (one,) = output.outputs
        assert one.logprobs is not None and one.stop_reason == stop
        assert [found.token_id for found in one.logprobs] == one.token_ids


def test_texts_are_banned_in_the_model_s_own_tokens(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(384)
    (word,) = [i for i in range(259, 384) if tokenizer.id_to_token(i) == "\u0120worker"][:1]
    llm = make_llm(scripted(tmp_path / "m", {7: word}))
    said = generate(llm, [5, 7], SamplingParams(temperature=0.0, max_tokens=1))
    assert said[0].outputs[0].text == " worker"
    params = SamplingParams(temperature=0.0, max_tokens=1, bad_words=["worker"])
    assert generate(llm, [5, 7], params)[0].outputs[0].token_ids != [word]
    with pytest.raises(ValueError, match="bad_words strings must have 1 to"):
        SamplingParams(bad_words=[""])


def test_a_model_s_own_repetition_penalty_is_a_default(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m")
    (path / "generation_config.json").write_text('{"repetition_penalty": 1.3}')
    assert make_llm(path).default_sampling_params().repetition_penalty == 1.3
