"""Guesses from a sequence's own text: the longest newest match, followed while it is right."""

import random

import pytest

from octavo.engine.prompt_lookup import FIRST_RATES, MAX_INDEXED, MAX_MATCH, MIN_MATCH, PromptLookup


def lookup_of(token_ids: list[int]) -> PromptLookup:
    lookup = PromptLookup(token_ids)
    lookup.follow()
    return lookup


def best_match(token_ids: list[int]) -> tuple[int, int]:
    """(matched tokens, place behind them) by trying every place; (0, 0) if none has two."""
    best = (0, 0)
    for place in range(MIN_MATCH, len(token_ids)):
        count = 0
        while (
            count < min(MAX_MATCH, place) and token_ids[place - 1 - count] == token_ids[-1 - count]
        ):
            count += 1
        if count >= MIN_MATCH:
            best = max(best, (count, place))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_longest_of_the_newest_matches_is_followed(seed: int) -> None:
    rng = random.Random(seed)
    token_ids = [rng.randrange(5) for _ in range(rng.randrange(1, 70))]
    num_matched, place = best_match(token_ids)
    lookup = PromptLookup(token_ids)
    assert lookup.follow() == (num_matched > 0)
    if num_matched > 0:
        most = len(token_ids) - place
        assert lookup.guess(most) == token_ids[place:]
        assert lookup.chance(0) == FIRST_RATES[num_matched]


def test_a_guess_that_reaches_the_end_goes_on_with_itself() -> None:
    assert lookup_of([9, 1, 2, 3, 1, 2, 3, 1, 2]).guess(7) == [3, 1, 2, 3, 1, 2, 3]
    assert lookup_of([5, 5, 5]).guess(4) == [5, 5, 5, 5]


def test_a_right_guess_is_followed_though_its_words_come_elsewhere_too() -> None:
    text = [1, 2, 3, 4, 7, 7, 8, 9, 3, 4, 5, 6, 1, 2]
    lookup = lookup_of(text)
    assert lookup.guess(4) == [3, 4, 7, 7]
    for token in (3, 4):
        text.append(token)
        assert lookup.follow()
    assert lookup.guess(2) == [7, 7]  # not 5, 6, which came after 3, 4 more recently
    text.append(5)  # wrong
    assert lookup.follow() and lookup.guess(1) == [6]


def test_no_guess_comes_of_new_words() -> None:
    assert not PromptLookup([1]).follow()
    assert not PromptLookup([1, 2]).follow()
    text = list(range(50))
    lookup = PromptLookup(text)
    for token in range(50, 60):
        assert not lookup.follow()
        text.append(token)


def test_chances_follow_what_was_right_and_wrong_of_late() -> None:
    text = [1, 2, 3, 4, 5] * 3
    lookup = lookup_of(text)
    before = lookup.chance(0)
    for token in [1, 2, 3, 4, 5] * 4:
        text.append(token)
        lookup.follow()
    assert before == FIRST_RATES[4] and lookup.chance(0) == lookup.chance(5) > 0.95
    rng = random.Random(0)
    text = [rng.randrange(3) for _ in range(200)]
    lookup = lookup_of(text)
    for _ in range(300):
        text.append(rng.randrange(3))
        lookup.follow()
    assert lookup.chance(0) < 0.6


def test_chances_count_while_nobody_asks_for_guesses() -> None:
    """Many tokens may come between two calls: each is compared with its guess."""
    pattern = [1, 2, 3, 4, 5]
    often, seldom = pattern * 3, pattern * 3
    each_step, at_once = lookup_of(often), lookup_of(seldom)
    for token in pattern * 2:
        often.append(token)
        each_step.follow()
    seldom += pattern * 2
    at_once.follow()
    assert each_step.chance(0) == at_once.chance(0)
    assert each_step.guess(3) == at_once.guess(3) == [1, 2, 3]


def test_a_long_prompt_is_indexed_over_several_steps() -> None:
    numbers = list(range(2 * MAX_INDEXED + 100))
    text = [*numbers, *numbers[-8:-4]]  # repeats what stands at the end of the prompt
    lookup = PromptLookup(text)
    assert [lookup.follow() for _ in range(3)] == [False, False, True]
    assert lookup.guess(4) == numbers[-4:]
