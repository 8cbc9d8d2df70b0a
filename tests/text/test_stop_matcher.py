"""A stop string ends the text where it should, however the text arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.stop_matcher import StopMatcher
from text.examples import examples


def feed(
    stops: list[str], pieces: list[str], include_stop_text: bool = False
) -> tuple[list[str], str | None]:
    """Push pieces until a match, then flush; return what was sent each time."""
    matcher = StopMatcher(stops, include_stop_text)
    sent = []
    for piece in pieces:
        text, matched = matcher.push(piece)
        sent.append(text)
        if matched is not None:
            return sent, matched
    return [*sent, matcher.flush()], None


PARIS = ["The", " capital", " is", " Paris", "."]


@pytest.mark.parametrize(
    ("stop", "before"),
    [
        ("Pari", "The capital is "),
        ("is P", "The capital "),
        ("s Par", "The capital i"),
        ("capital is", "The "),
        (".", "The capital is Paris"),
    ],
)
def test_text_is_cut_inside_and_across_tokens(stop: str, before: str) -> None:
    sent, matched = feed([stop], PARIS)
    assert ("".join(sent), matched) == (before, stop)
    sent, matched = feed([stop], PARIS, include_stop_text=True)
    assert ("".join(sent), matched) == (before + stop, stop)


def test_the_start_of_a_stop_string_is_held_and_dropped() -> None:
    sent, matched = feed(["DEFGHIJ"], list("ABCDEFGHIJKL"))
    assert sent == ["A", "B", "C", "", "", "", "", "", "", ""]
    assert matched == "DEFGHIJ"


def test_an_innocent_start_of_a_stop_string_is_released() -> None:
    sent, matched = feed(["DEFX"], list("CDEFG"))
    assert (sent, matched) == (["C", "", "", "", "DEFG", ""], None)


def test_held_text_is_released_at_the_end() -> None:
    assert feed(["DEFX"], list("CDE")) == (["C", "", "", "DE"], None)


def test_the_stop_string_that_ends_first_wins() -> None:
    assert feed(["abc", "ab"], ["xabc"]) == (["x"], "ab")
    assert feed(["abcde", "bcd"], list("abcde")) == (["", "", "", "a"], "bcd")
    assert feed(["b", "aab"], ["xaab"]) == (["x"], "aab")


def test_a_stop_string_may_begin_inside_a_failed_start() -> None:
    assert feed(["aab"], list("aaab")) == (["", "", "a", ""], "aab")
    assert feed(["aab"], ["aaab"]) == (["a"], "aab")
    assert feed(["aabaaac"], ["aabaaabaaac"]) == (["aaba"], "aabaaac")


def test_nothing_waits_when_the_stop_text_is_included() -> None:
    assert feed(["DEFX"], list("CDEFX"), include_stop_text=True)[0] == list("CDEFX")


def test_without_stop_strings_nothing_is_held() -> None:
    assert feed([], ["a", "b"]) == (["a", "b", ""], None)


@examples(1000)
@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    include=st.booleans(),
)
def test_any_split_gives_the_first_match(
    stops: list[str], pieces: list[str], include: bool
) -> None:
    text = "".join(pieces)
    ends = [
        (end, -len(stop), stop)
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[:end].endswith(stop)
    ]
    sent, matched = feed(stops, pieces, include)
    if not ends:
        assert ("".join(sent), matched) == (text, None)
        return
    end, _, stop = min(ends)
    assert matched == stop
    assert "".join(sent) == text[: end if include else end - len(stop)]


@examples(300)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4),
    text=st.text("abc", max_size=20),
)
def test_only_a_possible_start_is_held(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for count, character in enumerate(text, start=1):
        piece, matched = matcher.push(character)
        sent += piece
        if matched is not None:
            return
        held = text[len(sent) : count]
        assert sent + held == text[:count]
        assert not held or any(stop.startswith(held) for stop in stops)
