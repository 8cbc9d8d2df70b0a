"""PullKvResponse on the wire, without copying payloads more than once.

    0a LEN | chunk, first_block, digests, segment_offset | 7a LEN | payload
    ------   -----------------------------------------     -----------------
    chunk=1  small, written by protobuf                     payload=15, joined and viewed in place

The bytes are plain protobuf, so any other implementation reads and writes them; only the usual
detour of the payload through a message object is left out. `decode` takes every valid message: what
does not look as above goes through protobuf.
"""

from google.protobuf.message import DecodeError

from octavo.internal.v1alpha1 import worker_pb2

_CHUNK_TAG = 0x0A
_PAYLOAD_TAG = 0x7A
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


class MalformedFrame(Exception):
    """Bytes that are no PullKvResponse."""


def encode_chunk(header: worker_pb2.PullKvResponse.Chunk, payload: list[memoryview]) -> bytes:
    """Serialise `header` (its own payload empty) with `payload` as its payload field."""
    head = header.SerializeToString()
    num_bytes = sum(len(part) for part in payload)
    if num_bytes:
        head += bytes([_PAYLOAD_TAG]) + _varint(num_bytes)
    outer = bytes([_CHUNK_TAG]) + _varint(len(head) + num_bytes)
    return b"".join([outer, head, *payload])


def decode(frame: bytes) -> tuple[worker_pb2.PullKvResponse, memoryview]:
    """The message and a view of its chunk's payload, which the message itself may lack.

    Raises:
        MalformedFrame: protobuf cannot read it either.
    """
    view = memoryview(frame)
    try:
        found = _find_payload(view)
        if found is None:
            message = worker_pb2.PullKvResponse.FromString(frame)
            return message, memoryview(message.chunk.payload)
        header, payload = found
        chunk = worker_pb2.PullKvResponse.Chunk.FromString(bytes(header))
        return worker_pb2.PullKvResponse(chunk=chunk), payload
    except DecodeError as error:
        raise MalformedFrame(f"{len(frame)} bytes are no PullKvResponse") from error


def _find_payload(frame: memoryview) -> tuple[memoryview, memoryview] | None:
    """(chunk without payload, payload) if the frame is one chunk whose payload stands last."""
    try:
        if frame[0] != _CHUNK_TAG:
            return None
        length, start = _read_varint(frame, 1)
        if start + length != len(frame):
            return None
        position = start
        while frame[position] != _PAYLOAD_TAG:
            position = _skip_field(frame, position)
        num_bytes, payload_start = _read_varint(frame, position + 1)
    except IndexError:  # ran past the end: no payload, or not well-formed
        return None
    if payload_start + num_bytes != len(frame):
        return None
    return frame[start:position], frame[payload_start:]


def _skip_field(frame: memoryview, position: int) -> int:
    """Where the next field begins."""
    tag, position = _read_varint(frame, position)
    wire_type = tag & 7
    if wire_type == _VARINT:
        return _read_varint(frame, position)[1]
    if wire_type == _FIXED64:
        return position + 8
    if wire_type == _FIXED32:
        return position + 4
    if wire_type == _LENGTH_DELIMITED:
        length, position = _read_varint(frame, position)
        return position + length
    raise IndexError("groups are not used")


def _read_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """(value, position behind it)."""
    value = 0
    for shift in range(0, 70, 7):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError("varint of more than 10 bytes")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
