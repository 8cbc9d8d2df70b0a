"""Calls that are expected to fail, and what their errors say."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.inference.v1.inference_pb2 import (
    GenerateRequest,
    StreamGenerateRequest,
    TokenIds,
)

StartFleet = Callable[..., AbstractAsyncContextManager[Any]]

LONG = GenerateRequest(token_ids=TokenIds(ids=range(3, 103)))
SHORT = GenerateRequest(token_ids=TokenIds(ids=range(3, 30)))
TOKENS = [40] * 200


def start(fleet: Any, request: GenerateRequest = LONG, **options: Any) -> Any:
    return fleet.stub.StreamGenerate(StreamGenerateRequest(request=request), **options)


async def first_token(call: Any) -> None:
    """Read up to the first token."""
    async with asyncio.timeout(5):
        while not (await call.read()).HasField("delta"):
            pass


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """Read on until the call fails."""
    async with asyncio.timeout(10):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            while await call.read() is not grpc.aio.EOF:
                pass
    return failed.value


def retry_delay_s(error: grpc.aio.AioRpcError) -> float:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    for detail in status.details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return retry.retry_delay.ToTimedelta().total_seconds()
    raise AssertionError("no RetryInfo")


async def rest(call: Any) -> Any:
    """The messages up to the end."""
    while (message := await call.read()) is not grpc.aio.EOF:
        yield message
