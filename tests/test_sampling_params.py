import math

import pytest

from octavo import SamplingParams
from octavo.sampling_params import check_length, check_prompt


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
