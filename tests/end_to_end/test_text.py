"""Stop strings and text through the whole service, from scripted models: C13, C14, C18, C30.

Every case runs with the prompt handed over and with the prompt computed by the decode worker,
unary and streamed.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from checkpoints import scripted
from end_to_end.fleet import Fleet, running_fleet
from end_to_end.vocabulary import START, id_of, saying, spelled, word_tokenizer
from octavo.client import AsyncClient
from octavo.client.completion import Completion
from text.vocabularies import metaspace

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAYS = pytest.mark.parametrize("local_tokens", [0, 64], ids=["pulled", "local"])
PROMPT = [*range(20, 60), START]


@asynccontextmanager
async def speaker(model: Path, local_tokens: int) -> AsyncIterator[tuple[Fleet, AsyncClient]]:
    """A service of a scripted model; nothing is held when the block ends."""
    decode = {"local_prefill_max_tokens": local_tokens, "num_blocks": 64}
    async with (
        running_fleet(model, prefill={"num_blocks": 64}, decode=decode) as fleet,
        AsyncClient(fleet.address, timeout_s=20) as client,
    ):
        yield fleet, client
        await fleet.wait_until_quiet()


async def ask(client: AsyncClient, prompt: Sequence[int] = PROMPT, **fields: object) -> Completion:
    """The completion, which is the same unary and streamed; no token and no text comes twice."""
    fields = {"temperature": 0.0, "max_tokens": 60} | fields
    whole = await client.generate(list(prompt), **fields)  # type: ignore[arg-type]
    stream = client.stream(list(prompt), **fields)  # type: ignore[arg-type]
    deltas = [delta async for delta in stream]
    joined = stream.completion
    assert "".join(delta.text for delta in deltas) == joined.text == whole.text
    assert [i for delta in deltas for i in delta.token_ids] == joined.token_ids == whole.token_ids
    assert (joined.finish_reason, joined.matched_stop) == (whole.finish_reason, whole.matched_stop)
    assert joined.usage.completion_tokens == whole.usage.completion_tokens == len(whole.token_ids)
    return whole


def ids_of(tokenizer: Tokenizer, words: Sequence[str]) -> list[int]:
    return [id_of(tokenizer, spelled(word)) for word in words]


@WAYS
async def test_text_is_cut_inside_and_across_tokens(tmp_path: Path, local_tokens: int) -> None:
    """C13: a stop string may begin and end anywhere; the ids end with the one that completed it."""
    words = ["The", " capital", " is", " Paris", "."]
    tokenizer = word_tokenizer(words)
    token_ids = ids_of(tokenizer, words)
    text = "".join(words)
    async with speaker(saying(tmp_path / "m", tokenizer, token_ids), local_tokens) as (_, client):
        assert (await ask(client)).text == text
        last_tokens = {"Pari": 4, "is P": 4, "s Par": 4, "capital is": 3, "The": 1, ".": 5, "T": 1}
        for stop, num_tokens in last_tokens.items():
            cut = await ask(client, stop=[stop])
            assert cut.text == text[: text.index(stop)]
            assert (cut.finish_reason, cut.matched_stop) == ("stop_sequence", stop)
            assert cut.token_ids == token_ids[:num_tokens]
            kept = await ask(client, stop=[stop], include_stop_text=True)
            assert kept.text == text[: text.index(stop) + len(stop)]
            assert (kept.token_ids, kept.matched_stop) == (cut.token_ids, stop)


@WAYS
async def test_held_text_is_dropped_or_released_and_never_leaks(
    tmp_path: Path, local_tokens: int
) -> None:
    """C14: the start of a stop string waits; innocent text comes, matched text does not."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    tokenizer = word_tokenizer(list(letters))
    model = saying(tmp_path / "m", tokenizer, ids_of(tokenizer, list(letters)))
    async with speaker(model, local_tokens) as (_, client):
        held = await ask(client, stop=["DEFGHIJ"])
        assert (held.text, len(held.token_ids)) == ("ABC", 10)
        assert (await ask(client, stop=["DEFX"])).text == letters
        shorter_first = await ask(client, stop=["DEFG", "DE", "DEF"])
        assert (shorter_first.text, shorter_first.matched_stop) == ("ABC", "DE")
        # The output ends while text is held: by length, and by the end-of-sequence token.
        by_length = await ask(client, stop=["DEFGHIJ"], max_tokens=8)
        assert (by_length.text, by_length.finish_reason) == (letters[:8], "length")
        at_the_end = await ask(client, stop=["XYZ!"])
        assert (at_the_end.text, at_the_end.finish_reason) == (letters, "stop")
        both = await ask(client, stop=["YZ"], max_tokens=26)
        assert (both.text, both.finish_reason) == (letters[:24], "stop_sequence")


@WAYS
async def test_a_stop_string_may_begin_inside_its_own_failed_start(
    tmp_path: Path, local_tokens: int
) -> None:
    """C14: "aab" in "aaab"."""
    words = ["aa", "ab", "c"]
    tokenizer = word_tokenizer(words)
    model = saying(tmp_path / "m", tokenizer, ids_of(tokenizer, words))
    async with speaker(model, local_tokens) as (_, client):
        cut = await ask(client, stop=["aab"])
        assert (cut.text, cut.matched_stop) == ("a", "aab")


@WAYS
async def test_characters_split_over_tokens_come_whole(tmp_path: Path, local_tokens: int) -> None:
    """Emoji and letters of two bytes: no delta holds half a character."""
    text = "né🙂日"
    tokenizer = word_tokenizer([])
    token_ids = [id_of(tokenizer, byte) for byte in spelled(text)]
    async with speaker(saying(tmp_path / "m", tokenizer, token_ids), local_tokens) as (_, client):
        assert (await ask(client)).text == text
        stream = client.stream(PROMPT, temperature=0.0, max_tokens=60)
        assert not [d async for d in stream if "\N{REPLACEMENT CHARACTER}" in d.text]
        cut = await ask(client, max_tokens=5)  # in the middle of the emoji
        assert cut.text.startswith("né") and len(cut.token_ids) == 5


def llama_type(path: Path, pieces: Sequence[str], start: str) -> tuple[Path, Tokenizer, list[int]]:
    """A checkpoint with a SentencePiece-like tokenizer that says these pieces after `start`."""
    folder = metaspace(path / "tokenizer")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    token_ids = [id_of(tokenizer, piece) for piece in pieces]
    prompt = [1, id_of(tokenizer, start)]
    assert len({prompt[-1], *token_ids}) == len(token_ids) + 1
    table = dict(zip([prompt[-1], *token_ids], [*token_ids, 2], strict=True))
    model = scripted(path / "model", table, tokenizer=tokenizer, bos_token_id=1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((folder / name).read_bytes())
    (model / "chat_template.jinja").unlink()
    return model, tokenizer, prompt


SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@WAYS
@pytest.mark.parametrize(
    ("start", "pieces"),
    [
        ("x", [SPACE + "This", SPACE + "is", SPACE + "a", SPACE + "test"]),
        ("x", ["This", SPACE + "is", "a", "test"]),
        (SPACE, ["This", SPACE * 2, "is", SPACE * 4, "a", SPACE * 8, "test"]),
        ("</s>", [SPACE + "This", "<0x0A>", SPACE + "is", "<0x09>", SPACE * 2, "test", "<0x0D>"]),
        ("x", ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>", SPACE + "a", "é"]),
    ],
)
async def test_spaces_of_sentence_piece_models_survive(
    tmp_path: Path, local_tokens: int, start: str, pieces: list[str]
) -> None:
    """C18: deltas joined are decode(prompt + output) less decode(prompt), byte for byte."""
    model, tokenizer, prompt = llama_type(tmp_path, pieces, start)
    async with speaker(model, local_tokens) as (_, client):
        reply = await ask(client, prompt)
        whole, before = tokenizer.decode(prompt + reply.token_ids), tokenizer.decode(prompt)
        assert whole.startswith(before)
        assert reply.text == whole[len(before) :]
        assert reply.token_ids[:-1] == [id_of(tokenizer, piece) for piece in pieces]


@WAYS
async def test_few_tokens_are_exactly_that_many(tmp_path: Path, local_tokens: int) -> None:
    """C30: max_tokens 1, 2, 3; the decode worker sees nothing of a request for one token."""
    letters = list("ABCDEFG")
    tokenizer = word_tokenizer(letters)
    token_ids = ids_of(tokenizer, letters)
    model = saying(tmp_path / "m", tokenizer, token_ids)
    async with speaker(model, local_tokens) as (fleet, client):
        for max_tokens in (1, 2, 3):
            reply = await ask(client, max_tokens=max_tokens)
            assert reply.token_ids == token_ids[:max_tokens]
            assert (reply.text, reply.finish_reason) == ("ABC"[:max_tokens], "length")
            (decode,) = await fleet.workers("decode")
            assert (decode.counters.requests == 0) == (max_tokens == 1)


@WAYS
async def test_a_first_token_that_ends_the_output_needs_no_decode_step(
    tmp_path: Path, local_tokens: int
) -> None:
    """C30: an end-of-sequence token first, and a first token that completes a stop string."""
    letters = list("ABCDEFGH")
    tokenizer = word_tokenizer(letters)
    model = saying(tmp_path / "m", tokenizer, ids_of(tokenizer, letters))
    async with speaker(model, local_tokens) as (fleet, client):
        ended = await ask(client, [*range(20, 60), 30])  # a token without a successor
        assert (ended.token_ids, ended.text, ended.finish_reason) == ([2], "", "stop")
        assert ended.matched_stop == 2
        if local_tokens == 0:
            (decode,) = await fleet.workers("decode")
            assert decode.counters.tokens_generated == 0
        stopped = await ask(client, stop=["A"], max_tokens=900, ignore_eos=True)
        assert (stopped.text, stopped.finish_reason) == ("", "stop_sequence")
        assert len(stopped.token_ids) == 1
        await fleet.wait_until_quiet(1.0)
        (decode,) = await fleet.workers("decode")
        assert decode.counters.tokens_generated < 900, "a finished request was decoded on"
