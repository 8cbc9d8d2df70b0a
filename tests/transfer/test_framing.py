"""Chunks framed by hand are plain protobuf, and anything else is still read or refused."""

import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from octavo.internal.v1alpha1 import worker_pb2
from octavo.transfer.framing import MalformedFrame, decode, encode_chunk

Response = worker_pb2.PullKvResponse


@given(
    chunk=st.integers(0, 2**64 - 1),
    first_block=st.integers(0, 2**32 - 1),
    digests=st.lists(st.integers(0, 2**64 - 1), max_size=40),
    offset=st.integers(0, 2**64 - 1),
    parts=st.lists(st.binary(max_size=300), max_size=4),
)
def test_what_is_encoded_is_what_protobuf_would_write(
    chunk: int, first_block: int, digests: list[int], offset: int, parts: list[bytes]
) -> None:
    header = Response.Chunk(
        chunk=chunk, first_block=first_block, digests=digests, segment_offset=offset
    )
    frame = encode_chunk(header, [memoryview(part) for part in parts])
    whole = Response.Chunk()
    whole.CopyFrom(header)
    whole.payload = b"".join(parts)
    assert frame == Response(chunk=whole).SerializeToString()
    message, payload = decode(frame)
    assert bytes(payload) == b"".join(parts)
    message.chunk.payload = bytes(payload)
    assert message == Response(chunk=whole)


def test_the_payload_is_not_copied() -> None:
    frame = encode_chunk(Response.Chunk(chunk=3), [memoryview(bytes(1 << 20))])
    message, payload = decode(frame)
    assert payload.obj is frame and not message.chunk.payload


def test_a_completed_message_is_read() -> None:
    completed = Response(
        completed=Response.Completed(tokens=[worker_pb2.TokenDelta(token_ids=[7])])
    )
    message, payload = decode(completed.SerializeToString())
    assert message == completed and len(payload) == 0


def test_a_payload_before_other_fields_is_read() -> None:
    early = Response.Chunk(payload=b"abc").SerializeToString()
    late = Response.Chunk(chunk=9).SerializeToString()
    frame = bytes([0x0A, len(early) + len(late)]) + early + late
    message, payload = decode(frame)
    assert bytes(payload) == b"abc" and message.chunk.chunk == 9


def test_random_bytes_are_refused_or_read_as_protobuf_reads_them() -> None:
    draw = random.Random(0)
    frame = encode_chunk(Response.Chunk(chunk=1, digests=[5, 6]), [memoryview(b"x" * 40)])
    for _ in range(20_000):
        damaged = bytearray(frame)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        damaged = damaged[: draw.randint(0, len(damaged))]
        try:
            expected = Response.FromString(bytes(damaged))
        except DecodeError:
            expected = None
        try:
            message, payload = decode(bytes(damaged))
        except MalformedFrame:
            assert expected is None
            continue
        assert expected is not None
        assert bytes(payload) == expected.chunk.payload
        assert message.chunk.chunk == expected.chunk.chunk
        assert list(message.chunk.digests) == list(expected.chunk.digests)


def test_garbage_is_refused() -> None:
    with pytest.raises(MalformedFrame, match="4 bytes"):
        decode(b"\xff\xff\xff\xff")
