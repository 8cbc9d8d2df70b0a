"""Any tokens, also none that a model should say, stream to the text of a whole decode.

Byte-level BPE, Unigram, WordPiece and suffix vocabularies: `decode` of `tokenizers`. Byte fallback:
the `sentencepiece` library, and `decode` wherever the bytes are UTF-8.
"""

import io
from collections.abc import Callable, Sequence

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from octavo.sampling_params import SamplingParams
from octavo.text.detokenizer import REPLACEMENT
from octavo.text.output import TextOutput
from octavo.text.tokenizer import Tokenizer
from text.examples import examples
from text.vocabularies import (
    SPACE,
    TEXT,
    byte_level,
    metaspace,
    save,
    suffixes,
    unigram,
    word_piece,
)

KINDS = [byte_level, metaspace, unigram, word_piece, suffixes]
NAMES = [kind.__name__ for kind in KINDS]
SENTENCES = [TEXT, "Größe, naïve café, Привет мир, 你好世界", "words and more words, 1 2 3"] * 4


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {kind.__name__: Tokenizer.load(kind(tmp_path_factory.mktemp("kind"))) for kind in KINDS}


def deltas(
    tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int], skip: bool = True
) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    return [*(detokenizer.push(token_id) for token_id in output), detokenizer.flush()]


def decoded(tokenizer: Tokenizer, token_ids: Sequence[int], skip: bool) -> str:
    """`decode`, but each byte of byte-fallback tokens that belongs to no character apart."""
    text, run = "", b""
    for token_id in token_ids:
        piece = tokenizer._backend.id_to_token(token_id)
        if piece is None or (skip and token_id in tokenizer._special_ids):
            continue
        if piece.startswith("<0x"):
            run += bytes([int(piece[3:5], 16)])
            continue
        text, run = text + characters(run) + piece.replace(SPACE, " "), b""
    return (text + characters(run)).removeprefix(" ")


def characters(run: bytes) -> str:
    text = ""
    while run:
        for length in range(1, 5):
            try:
                text, run = text + run[:length].decode(), run[length:]
                break
            except UnicodeDecodeError:
                continue
        else:
            text, run = text + REPLACEMENT, run[1:]
    return text


@pytest.mark.parametrize("name", NAMES)
@examples(200)
@given(data=st.data(), skip=st.booleans())
def test_any_tokens_stream_to_their_decode(
    tokenizers: dict[str, Tokenizer], name: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizers[name]
    # Ids past the vocabulary are a padded model's.
    token_ids = st.lists(st.integers(0, tokenizer.vocab_size + 4), max_size=25)
    prompt, output = data.draw(token_ids), data.draw(token_ids)
    whole = tokenizer.decode([*prompt, *output], skip_special_tokens=skip)
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    if name == "metaspace":
        whole, before = (decoded(tokenizer, ids, skip) for ids in ([*prompt, *output], prompt))
    streamed = deltas(tokenizer, prompt, output, skip)
    if whole.startswith(before):
        assert "".join(streamed) == whole[len(before) :]
    else:  # the prompt's last character was cut, and is whole now or broken otherwise
        assert before.endswith(REPLACEMENT)
        assert whole.startswith(before.rstrip(REPLACEMENT))
        assert whole.endswith("".join(streamed).lstrip(REPLACEMENT))


@pytest.mark.parametrize("name", NAMES)
@examples(200)
@given(data=st.data())
def test_no_piece_is_taken_back_or_held_for_more_than_three_tokens(
    tokenizers: dict[str, Tokenizer], name: str, data: st.DataObject
) -> None:
    tokenizer = tokenizers[name]
    output = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=25))
    streamed = deltas(tokenizer, [], output)
    alone = ["".join(deltas(tokenizer, [], [i])) for i in output]
    for length in range(len(output)):
        text = "".join(streamed[:length])
        ended = "".join(deltas(tokenizer, [], output[:length]))
        assert ended.startswith(text)
        held, visible = ended[len(text) :], [shown for shown in alone[:length] if shown]
        assert not held.strip(REPLACEMENT)
        assert len(held) <= sum(map(len, visible[-3:]))


def pieces_of(output: Sequence[int], data: st.DataObject) -> list[Sequence[int]]:
    """The output cut anywhere, into empty pieces too."""
    cuts = data.draw(st.lists(st.integers(0, len(output)), max_size=6).map(sorted))
    return [output[a:b] for a, b in zip([0, *cuts], [*cuts, len(output)], strict=True)]


def check_together(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    output: Sequence[int],
    skip: bool,
    data: st.DataObject,
) -> None:
    together = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    single = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    for piece in pieces_of(output, data):
        assert together.push_all(piece) == "".join(single.push(i) for i in piece)
    assert together.flush() == single.flush()


@pytest.mark.parametrize("name", NAMES)
@examples(300)
@given(data=st.data(), skip=st.booleans())
def test_any_tokens_that_come_together_give_the_text_of_single_ones(
    tokenizers: dict[str, Tokenizer], name: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizers[name]
    token_ids = st.integers(0, tokenizer.vocab_size + 4)
    # Ids behind 258 are words where those before are bytes.
    words = st.integers(min(259, tokenizer.vocab_size // 2), tokenizer.vocab_size - 1)
    output = data.draw(st.lists(words, max_size=25) | st.lists(token_ids, max_size=25))
    prompt = data.draw(st.lists(words | token_ids, max_size=25))
    check_together(tokenizer, prompt, output, skip, data)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def sentence_piece(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    """A trained SentencePiece model with byte fallback, and its conversion."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        model_type=request.param,
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=0.98,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [
        (processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.vocab_size())
    ]
    backend = Backend(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    )
    folder = tmp_path_factory.mktemp("sentence_piece")
    save(folder, backend, {"tokenizer_class": "PreTrainedTokenizerFast"})
    return processor, Tokenizer.load(folder)


@examples(300)
@given(data=st.data())
def test_any_tokens_stream_to_what_sentence_piece_decodes(
    sentence_piece: tuple[sentencepiece.SentencePieceProcessor, Tokenizer], data: st.DataObject
) -> None:
    processor, tokenizer = sentence_piece
    token_ids = st.integers(3, processor.vocab_size() - 1)
    output = data.draw(st.lists(token_ids | st.integers(3, 258), max_size=30))
    prompt = processor.encode("words")
    whole, before = processor.decode([*prompt, *output]), processor.decode(prompt)
    assert "".join(deltas(tokenizer, prompt, output)) == whole[len(before) :]


@examples(300)
@given(data=st.data())
def test_tokens_of_sentence_piece_that_come_together_give_the_text_of_single_ones(
    sentence_piece: tuple[sentencepiece.SentencePieceProcessor, Tokenizer], data: st.DataObject
) -> None:
    processor, tokenizer = sentence_piece
    words = st.integers(259, processor.vocab_size() - 1)
    output = data.draw(st.lists(words | st.integers(3, 258), max_size=30) | st.lists(words))
    check_together(tokenizer, processor.encode("words"), output, True, data)


@examples(200)
@given(text=st.text(max_size=30))
def test_any_text_comes_back_from_sentence_piece(
    sentence_piece: tuple[sentencepiece.SentencePieceProcessor, Tokenizer], text: str
) -> None:
    processor, tokenizer = sentence_piece
    prompt, output = processor.encode("words"), processor.encode(text)
    streamed = deltas(tokenizer, prompt, output)
    decode: Callable[[list[int]], str] = tokenizer.decode
    assert "".join(streamed) == decode([*prompt, *output])[len(decode(prompt)) :]
    assert "".join(streamed) == processor.decode([*prompt, *output])[len("words") :]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("name", NAMES)
@examples(100)
@given(data=st.data())
def test_stop_strings_cut_inside_and_across_tokens(
    tokenizers: dict[str, Tokenizer], name: str, include: bool, data: st.DataObject
) -> None:
    tokenizer = tokenizers[name]
    output = data.draw(st.lists(st.integers(3, tokenizer.vocab_size - 1), min_size=1, max_size=15))
    whole = "".join(deltas(tokenizer, [], output))
    stops = ["never"]
    if whole.strip():
        start = data.draw(st.integers(0, len(whole) - 1))
        stops.append(whole[start : start + data.draw(st.integers(1, 8))])
    sampling = SamplingParams(stop=tuple(stops), include_stop_text=include)
    text_output = TextOutput(tokenizer, [], sampling)
    size = data.draw(st.integers(1, 4))
    text, sent = "", []
    for at in range(0, len(output), size):
        delta = text_output.push(output[at : at + size])
        text, sent = text + delta.text, [*sent, *delta.token_ids]
        if delta.matched_stop is not None:
            break
    else:
        text += text_output.finish()
    if len(stops) == 1:
        assert (text, sent, text_output.matched_stop) == (whole, output, None)
        return
    stop = stops[1]
    end = whole.find(stop) + len(stop)
    assert text_output.matched_stop == stop
    assert text == whole[: end if include else end - len(stop)]
    streamed = deltas(tokenizer, [], output)
    lengths = [len("".join(streamed[: count + 1])) for count in range(len(output))]
    last = next((count for count, length in enumerate(lengths) if length >= end), len(output) - 1)
    assert sent == output[: last + 1]
