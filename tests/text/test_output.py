"""Tokens in, text out, cut at the stop string, for one sample."""

import pytest

from octavo.sampling_params import SamplingParams
from octavo.text.output import TextDelta, TextOutput
from octavo.text.tokenizer import Tokenizer


def output(tokenizer: Tokenizer, **fields: object) -> TextOutput:
    return TextOutput(tokenizer, tokenizer.encode("x"), SamplingParams(**fields))  # type: ignore[arg-type]


def test_tokens_end_with_the_one_that_completes_the_stop_string(
    byte_level_tokenizer: Tokenizer,
) -> None:
    token_ids = byte_level_tokenizer.encode("The capital is Paris.")
    text = output(byte_level_tokenizer, stop=["Par"])
    delta = text.push(token_ids)
    assert (delta.text, delta.matched_stop) == ("The capital is ", "Par")
    prefix = list(delta.token_ids)
    assert prefix == token_ids[: len(prefix)]
    assert "Par" in byte_level_tokenizer.decode(prefix)
    assert "Par" not in byte_level_tokenizer.decode(prefix[:-1])
    assert text.push(token_ids) == TextDelta("", (), "Par")
    assert text.finish() == ""


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_any_number_of_tokens_at_a_time_gives_the_same(
    metaspace_tokenizer: Tokenizer, size: int, include: bool
) -> None:
    token_ids = metaspace_tokenizer.encode("This is a \N{PARTY POPPER} test, world")[1:]
    text = output(metaspace_tokenizer, stop=["st, w", "never"], include_stop_text=include)
    joined, sent = "", []
    for start in range(0, len(token_ids), size):
        delta = text.push(token_ids[start : start + size])
        joined += delta.text
        sent += delta.token_ids
        if delta.matched_stop:
            break
    assert text.matched_stop == "st, w"
    assert joined == " This is a \N{PARTY POPPER} te" + ("st, w" if include else "")
    assert "st, w" in metaspace_tokenizer.decode(sent)
    assert "st, w" not in metaspace_tokenizer.decode(sent[:-1])


def test_a_newline_of_byte_fallback_stops_at_its_own_token(metaspace_tokenizer: Tokenizer) -> None:
    token_ids = metaspace_tokenizer.encode("This\nis")[1:]
    delta = output(metaspace_tokenizer, stop=["\n"]).push(token_ids)
    assert delta.text == " This"
    assert metaspace_tokenizer.decode(delta.token_ids) == "This\n"


def test_held_text_and_half_characters_come_at_the_end(byte_level_tokenizer: Tokenizer) -> None:
    whole = byte_level_tokenizer.encode("is te\N{OLD ITALIC LETTER A}")
    text = output(byte_level_tokenizer, stop=["test"])
    delta = text.push(whole[:-1])
    assert delta.text + text.finish() == "is te\N{REPLACEMENT CHARACTER}"
    assert text.matched_stop is None


def test_a_stop_string_held_at_the_end_is_sent(byte_level_tokenizer: Tokenizer) -> None:
    text = output(byte_level_tokenizer, stop=["test"])
    assert text.push(byte_level_tokenizer.encode("a tes")).text == "a "
    assert text.finish() == "tes"


def test_end_of_sequence_shows_only_when_special_tokens_do(byte_level_tokenizer: Tokenizer) -> None:
    token_ids = byte_level_tokenizer.encode("a<|im_end|>")
    assert output(byte_level_tokenizer).push(token_ids).text == "a"
    shown = output(byte_level_tokenizer, skip_special_tokens=False).push(token_ids)
    assert shown.text == "a<|im_end|>"


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("include", [True, False])
def test_no_stop_string_ends_in_the_first_min_tokens(
    byte_level_tokenizer: Tokenizer, size: int, include: bool
) -> None:
    """C15; it may begin there, and text that waits for it is not lost."""
    token_ids = [i for letter in "abcabcabc" for i in byte_level_tokenizer.encode(letter)]
    for min_tokens, expected in (
        (0, ("ab", 3)),
        (2, ("ab", 3)),
        (3, ("abcab", 6)),
        (5, ("abcab", 6)),
        (6, ("abcabcab", 9)),
        (9, ("abcabcabc", 9)),
    ):
        text = output(
            byte_level_tokenizer,
            stop=["c", "bc!", "cabd"],
            include_stop_text=include,
            min_tokens=min_tokens,
        )
        joined, count = "", 0
        for start in range(0, len(token_ids), size):
            delta = text.push(token_ids[start : start + size])
            joined += delta.text
            count += len(delta.token_ids)
            if delta.matched_stop:
                break
        joined += text.finish()
        is_cut = min_tokens < 9
        assert (text.matched_stop == "c") == is_cut
        assert (joined, count) == (expected[0] + ("c" if include and is_cut else ""), expected[1])


def test_half_a_character_in_the_first_min_tokens_is_no_stop(
    byte_level_tokenizer: Tokenizer,
) -> None:
    half = byte_level_tokenizer.encode("\N{OLD ITALIC LETTER A}")[:-1]
    assert output(byte_level_tokenizer, stop=["\N{REPLACEMENT CHARACTER}"]).push(half).text == ""
    for min_tokens in (len(half), len(half) + 1):
        text = output(
            byte_level_tokenizer, stop=["\N{REPLACEMENT CHARACTER}"], min_tokens=min_tokens
        )
        assert text.push(half).text + text.finish() == "\N{REPLACEMENT CHARACTER}"
        assert text.matched_stop is None
