import math
from dataclasses import replace

import pytest

from octavo import SamplingParams
from octavo.prompt_limits import check_length, check_prompt, check_prompt_logprobs


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 2**31),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("top_p", math.nan),
        ("min_p", 2.0),
        ("min_p", -math.inf),
        ("top_k", -2),
        ("seed", -1),
        ("seed", 2**64),
        ("stop", [""]),
        ("stop", ["x" * 257]),
        ("stop", ["x"] * 17),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", range(65)),
        ("min_tokens", -1),
        ("min_tokens", 257),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("bad_words", [""]),
        ("bad_words", "x" * 257),
        ("bad_words", ["x"] * 257),
        ("bad_words_ids", [[]]),
        ("bad_words_ids", [[1, -1]]),
        ("bad_words_ids", [[1] * 513]),
        ("bad_words_ids", [[1]] * 1025),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", range(65537)),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-8, 1e-4, 2.0, 1e30])
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 1.0])
@pytest.mark.parametrize("top_k", [-1, 0, 1, 10**9])
def test_legal_extremes_are_accepted(temperature: float, top_p: float, top_k: int) -> None:
    SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=1.0)


def test_one_stop_string_may_be_written_without_a_list() -> None:
    assert SamplingParams(stop="###").stop == ("###",)


def test_lists_are_copied_and_hashable() -> None:
    ids, bias = [[1], [2, 3]], {4: 1.0}
    params = SamplingParams(bad_words_ids=ids, logit_bias=bias, bad_words="a")  # type: ignore[arg-type]
    ids[0].append(9)
    bias[5] = 1.0
    assert params.bad_words_ids == ((1,), (2, 3)) and params.bad_words == ("a",)
    assert params.logit_bias == {4: 1.0}
    assert len({params, SamplingParams(), SamplingParams()}) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {10: 1.0}},
        {"allowed_token_ids": [10]},
        {"bad_words_ids": [[1, 10]]},
        {"stop_token_ids": [10]},
        {"allowed_token_ids": [1, 2], "bad_words_ids": [[1], [2]]},
        {"allowed_token_ids": [1, 2], "min_tokens": 1, "stop_token_ids": [1, 2]},
        {"allowed_token_ids": [7], "min_tokens": 1},
        {"bad_words_ids": [[i] for i in range(10)]},
    ],
)
def test_what_the_vocabulary_cannot_give_is_refused_by_name(fields: dict[str, object]) -> None:
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{list(fields)[0]} "):
        params.check_vocabulary(10, [7])
    if "min_tokens" not in fields:
        return
    replace(params, min_tokens=0).check_vocabulary(10, [7])


def test_log_probabilities_of_a_prompt_fit_a_message() -> None:
    check_prompt_logprobs(10**6, None)
    check_prompt_logprobs(10**6, 0)
    with pytest.raises(ValueError, match="prompt_logprobs 20 of 47620 tokens are 1000020"):
        check_prompt_logprobs(47620, 20)


def test_prompt_checks_name_the_limit() -> None:
    check_prompt([0, 9], vocab_size=10, max_context_tokens=3)
    with pytest.raises(ValueError, match="empty"):
        check_prompt([], 10, 100)
    with pytest.raises(ValueError, match="token_ids must be 0 to 9, got 10"):
        check_prompt([3, 10], 10, 100)
    with pytest.raises(ValueError, match="at most 99 fit"):
        check_prompt([1] * 100, 10, 100)
    with pytest.raises(ValueError, match="at most 2 fit"):
        check_length(98, 3, 100)
    check_length(98, 2, 100)


def test_stop_ids_beyond_the_vocabulary_are_refused() -> None:
    SamplingParams(stop_token_ids=[9]).check_vocabulary(10)
    with pytest.raises(ValueError, match="below the vocabulary size 10, got 10"):
        SamplingParams(stop_token_ids=[10]).check_vocabulary(10)
