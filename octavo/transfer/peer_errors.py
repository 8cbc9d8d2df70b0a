"""What a failed call to a peer means to our own caller."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from octavo.rpc.errors import (
    Aborted,
    DataLoss,
    Expired,
    InvalidRequest,
    NoWorker,
    Precondition,
    RequestError,
)


@contextmanager
def from_peer(name: str) -> Iterator[None]:
    """Turn gRPC's errors of the block into ours, naming the peer."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _translated(name, error) from error
    except asyncio.InvalidStateError as error:  # written to after the call had ended
        raise NoWorker(f"{name} ended the call") from error


def _translated(name: str, error: grpc.aio.AioRpcError) -> RequestError:
    message = f"{name}: {error.details()}"
    match error.code():
        case grpc.StatusCode.FAILED_PRECONDITION:
            return Precondition("kv", message)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest("kv", message)
        case grpc.StatusCode.DATA_LOSS:
            return DataLoss(message)
        case grpc.StatusCode.ABORTED | grpc.StatusCode.ALREADY_EXISTS:
            return Aborted(message)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Expired(message)
        case _:
            return NoWorker(f"{message} ({error.code().name})")
