"""Joined deltas are what a whole decode gives, for each kind of vocabulary."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.detokenizer import REPLACEMENT
from octavo.text.tokenizer import Tokenizer
from text.examples import examples
from text.vocabularies import SPACE

EMOJI = "\N{GRINNING FACE}\N{PARTY POPPER}"


def deltas(
    tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int], skip: bool = True
) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    return [*(detokenizer.push(token_id) for token_id in output), detokenizer.flush()]


def expected(
    tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int], skip: bool = True
) -> str:
    whole = tokenizer.decode([*prompt, *output], skip_special_tokens=skip)
    return whole[len(tokenizer.decode(prompt, skip_special_tokens=skip)) :]


def ids(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    found = [tokenizer._backend.token_to_id(piece) for piece in pieces]
    assert None not in found, pieces
    return found


def run(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return ids(tokenizer, *(f"<0x{byte:02X}>" for byte in data))


@examples(400)
@given(data=st.data(), skip=st.booleans())
def test_any_byte_level_tokens_stream_to_their_decode(
    byte_level_tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    # Ids past the vocabulary are a padded model's; ids up to 259 are mostly single bytes.
    token_ids = st.integers(0, byte_level_tokenizer.vocab_size + 5)
    prompt = byte_level_tokenizer.encode(data.draw(st.text(max_size=12)))
    output = data.draw(st.lists(token_ids | st.integers(3, 258), max_size=40))
    streamed = "".join(deltas(byte_level_tokenizer, prompt, output, skip))
    assert streamed == expected(byte_level_tokenizer, prompt, output, skip)


@examples(600)
@given(data=st.data())
def test_tokens_that_come_together_give_the_text_of_single_ones(
    byte_level_tokenizer: Tokenizer,
    metaspace_tokenizer: Tokenizer,
    word_piece_tokenizer: Tokenizer,
    data: st.DataObject,
) -> None:
    tokenizer = data.draw(
        st.sampled_from([byte_level_tokenizer, metaspace_tokenizer, word_piece_tokenizer])
    )
    token_ids = st.integers(0, tokenizer.vocab_size + 5)
    text = st.text(max_size=8).map(lambda t: tokenizer.encode(t, add_special_tokens=False))
    pieces = st.lists(text | st.lists(token_ids | st.integers(3, 258), max_size=6), max_size=8)
    prompt = data.draw(text)
    together = tokenizer.detokenizer(prompt)
    single = tokenizer.detokenizer(prompt)
    for piece in data.draw(pieces):
        assert together.push_all(piece) == "".join(single.push(i) for i in piece)
    assert together.flush() == single.flush()


@examples(300)
@given(text=st.text(max_size=40), prompt=st.text(max_size=10))
def test_no_delta_of_encoded_text_has_half_a_character(
    byte_level_tokenizer: Tokenizer, metaspace_tokenizer: Tokenizer, text: str, prompt: str
) -> None:
    text = text.replace(REPLACEMENT, "")
    for tokenizer in (byte_level_tokenizer, metaspace_tokenizer):
        prompt_ids = tokenizer.encode("a" + prompt)
        output = tokenizer.encode(text, add_special_tokens=False)
        pieces = deltas(tokenizer, prompt_ids, output)
        assert "".join(pieces) == expected(tokenizer, prompt_ids, output)
        assert REPLACEMENT not in "".join(pieces)


@examples(400)
@given(data=st.data(), skip=st.booleans())
def test_metaspace_tokens_with_whole_characters_stream_to_their_decode(
    metaspace_tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    tokenizer = metaspace_tokenizer
    words = st.integers(259, tokenizer.vocab_size - 1).map(lambda i: [i])
    specials = st.sampled_from([[0], [1], [2]])
    # A replacement character spelled in bytes looks like broken bytes.
    whole = st.characters(exclude_categories=["Cs"], exclude_characters=[REPLACEMENT])
    characters = whole.map(lambda character: run(tokenizer, character.encode()))
    # The byte fallback of a character cut short, between words: of a run that begins with whole
    # characters these would be kept, unlike in decode.
    broken = st.sampled_from([b"\xe2\x82", b"\xff", b"\xf0\x9f\x98"]).flatmap(
        lambda b: words.map(lambda word: [*ids(tokenizer, SPACE), *run(tokenizer, b), *word])
    )
    chunks = st.lists(words | specials | characters | broken, max_size=15)
    prompt = [i for chunk in data.draw(st.lists(words | specials, max_size=12)) for i in chunk]
    output = [i for chunk in data.draw(chunks) for i in chunk]
    streamed = "".join(deltas(tokenizer, prompt, output, skip))
    assert streamed == expected(tokenizer, prompt, output, skip)


@pytest.mark.parametrize("prompt", [[], [1], [1, 300]], ids=["empty", "bos", "text"])
@pytest.mark.parametrize(
    "pieces",
    [
        [SPACE + "This", SPACE + "is", SPACE + "a", SPACE + "test"],
        ["This", SPACE + "is", SPACE, SPACE + "a"],
        *([SPACE * 2**k for k in range(4) if n >> k & 1] + ["x"] for n in range(2, 16)),
        [SPACE, SPACE, SPACE, "x"],
        ["<0x0A>", "<0x0A>", "<0x09>", "x", "<0x0A>"],
        ["</s>", SPACE + "is", "<s>", "is", "<s>", SPACE, SPACE + "a"],
        ["is", "", SPACE + "a", "", "", SPACE * 2, "", SPACE + "This"],
    ],
)
@pytest.mark.parametrize("skip", [True, False])
def test_spaces_newlines_and_tabs_survive(
    metaspace_tokenizer: Tokenizer, prompt: list[int], pieces: list[str], skip: bool
) -> None:
    output = ids(metaspace_tokenizer, *pieces)
    streamed = "".join(deltas(metaspace_tokenizer, prompt, output, skip))
    assert streamed == expected(metaspace_tokenizer, prompt, output, skip)


def test_each_token_of_plain_text_is_sent_at_once(metaspace_tokenizer: Tokenizer) -> None:
    output = ids(metaspace_tokenizer, SPACE + "This", SPACE + "is", "<0x0A>", "x")
    prompt = metaspace_tokenizer.encode("Hello")
    assert deltas(metaspace_tokenizer, prompt, output) == [" This", " is", "\n", "x", ""]


def test_a_character_waits_for_its_last_byte(byte_level_tokenizer: Tokenizer) -> None:
    prompt = byte_level_tokenizer.encode("a")
    alphabet = byte_level_tokenizer.encode("\N{OLD ITALIC LETTER A}", add_special_tokens=False)
    assert len(alphabet) == 4
    assert deltas(byte_level_tokenizer, prompt, alphabet) == [
        "",
        "",
        "",
        "\N{OLD ITALIC LETTER A}",
        "",
    ]
    assert deltas(byte_level_tokenizer, prompt, alphabet[:3]) == ["", "", "", REPLACEMENT]


def test_a_prompt_cut_inside_a_character_is_completed(byte_level_tokenizer: Tokenizer) -> None:
    token_ids = byte_level_tokenizer.encode("so \N{OLD ITALIC LETTER A}!")
    pieces = deltas(byte_level_tokenizer, token_ids[:-3], token_ids[-3:])
    assert pieces == ["", "\N{OLD ITALIC LETTER A}", "!", ""]


def test_whole_characters_stay_when_their_byte_run_breaks_off(
    metaspace_tokenizer: Tokenizer,
) -> None:
    prompt = metaspace_tokenizer.encode("Hello")
    output = run(metaspace_tokenizer, EMOJI.encode()[:6])
    assert "".join(deltas(metaspace_tokenizer, prompt, output)) == EMOJI[0] + 2 * REPLACEMENT
    # decode takes the whole one back
    assert expected(metaspace_tokenizer, prompt, output) == 6 * REPLACEMENT


@pytest.mark.parametrize("num_broken", range(1, 7))
def test_a_character_behind_broken_bytes_is_whole(
    byte_level_tokenizer: Tokenizer, num_broken: int
) -> None:
    character = byte_level_tokenizer.encode("\N{OLD ITALIC LETTER A}", add_special_tokens=False)
    output = ids(byte_level_tokenizer, *["ÿ"] * num_broken) + character
    streamed = "".join(deltas(byte_level_tokenizer, [], output))
    assert streamed == num_broken * REPLACEMENT + "\N{OLD ITALIC LETTER A}"


def test_whole_characters_behind_a_broken_byte_are_kept(metaspace_tokenizer: Tokenizer) -> None:
    prompt = metaspace_tokenizer.encode("Hello")
    output = run(metaspace_tokenizer, b"\xff" + "€".encode()) + ids(metaspace_tokenizer, "x")
    assert deltas(metaspace_tokenizer, prompt, output) == [REPLACEMENT, "", "", "€", "x", ""]
    # decode keeps none of the run
    assert expected(metaspace_tokenizer, prompt, output) == 4 * REPLACEMENT + "x"


def test_a_prompt_cut_inside_a_byte_run_is_completed(metaspace_tokenizer: Tokenizer) -> None:
    for character in ("é", "€", EMOJI[0]):
        data = character.encode()
        for cut in range(1, len(data)):
            prompt = [*metaspace_tokenizer.encode("Hello"), *run(metaspace_tokenizer, data[:cut])]
            output = [*run(metaspace_tokenizer, data[cut:]), *ids(metaspace_tokenizer, "x")]
            assert "".join(deltas(metaspace_tokenizer, prompt, output)) == character + "x"
            # Not completed, it is the prompt's, whose text showed it.
            assert "".join(deltas(metaspace_tokenizer, prompt, output[-1:])) == "x"


@pytest.mark.parametrize("prompt", ["Hello</s></s></s></s></s></s></s></s></s></s>", 5 * "€"])
@pytest.mark.parametrize("piece", [SPACE + "This", "<0x0A>"])
def test_the_prompts_tail_reaches_back_to_text_and_to_a_whole_character(
    metaspace_tokenizer: Tokenizer, prompt: str, piece: str
) -> None:
    prompt_ids, output = metaspace_tokenizer.encode(prompt), ids(metaspace_tokenizer, piece)
    streamed = "".join(deltas(metaspace_tokenizer, prompt_ids, output))
    assert streamed == expected(metaspace_tokenizer, prompt_ids, output)
    assert streamed == piece.replace(SPACE, " ").replace("<0x0A>", "\n")


@pytest.mark.parametrize("byte", [0xC3, 0xFF])
def test_endless_broken_bytes_are_sent_and_the_window_stays_short(
    byte_level_tokenizer: Tokenizer, metaspace_tokenizer: Tokenizer, byte: int
) -> None:
    mapped = {0xC3: "Ã", 0xFF: "ÿ"}[byte]
    for tokenizer, token_id in (
        (byte_level_tokenizer, ids(byte_level_tokenizer, mapped)[0]),
        (metaspace_tokenizer, run(metaspace_tokenizer, bytes([byte]))[0]),
    ):
        detokenizer = tokenizer.detokenizer(tokenizer.encode("x"))
        sent = [detokenizer.push(token_id) for _ in range(500)]
        assert len(detokenizer._window) <= 8
        assert len("".join(sent)) >= 496
        assert "".join(sent) + detokenizer.flush() == 500 * REPLACEMENT


def test_word_pieces_stream_to_their_decode(word_piece_tokenizer: Tokenizer) -> None:
    prompt = ids(word_piece_tokenizer, "the", "game")
    output = ids(word_piece_tokenizer, "play", "##ing", ",", "the", "game", "n't", "##ed", ".")
    for length in range(len(output) + 1):
        streamed = "".join(deltas(word_piece_tokenizer, prompt, output[:length]))
        assert streamed == expected(word_piece_tokenizer, prompt, output[:length])


@pytest.fixture(params=["byte_level_tokenizer", "metaspace_tokenizer"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def test_the_window_stays_short_on_long_outputs(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("This is a test " * 50)
    detokenizer = tokenizer.detokenizer(token_ids)
    longest = 0
    for token_id in token_ids:
        detokenizer.push(token_id)
        longest = max(longest, len(detokenizer._window))
    assert longest <= 8


@pytest.mark.parametrize("num_together", [2, 3, 7])
def test_the_window_stays_short_behind_tokens_that_come_together(
    byte_level_tokenizer: Tokenizer, num_together: int
) -> None:
    token_ids = byte_level_tokenizer.encode("a" + 100 * "𐌀")
    detokenizer = byte_level_tokenizer.detokenizer([])
    for begin in range(0, len(token_ids), num_together):
        detokenizer.push_all(token_ids[begin : begin + num_together])
        assert len(detokenizer._window) <= 8 + num_together


def test_a_long_prompt_costs_only_its_tail(
    byte_level_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    decode: Callable[..., str] = byte_level_tokenizer._backend.decode

    class Counting:
        id_to_token = byte_level_tokenizer._backend.id_to_token

        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            lengths.append(len(token_ids))
            return decode(token_ids, skip_special_tokens=skip_special_tokens)

    prompt = byte_level_tokenizer.encode("a") * 10_000
    monkeypatch.setattr(byte_level_tokenizer, "_backend", Counting())
    byte_level_tokenizer.detokenizer(prompt)
    assert max(lengths) <= 8
