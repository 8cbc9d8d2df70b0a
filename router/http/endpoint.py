"""An endpoint that generates: a body in, events or one object out, for as long as its client stays.

body --read--> Asked --Inference.stream--> messages --Answers--> events | object
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.inference.v1.inference_pb2 import GenerateRequest
from octavo.router.http.answers import Answers
from octavo.router.http.asked import Asked
from octavo.router.http.connection import (
    MAX_BODY_BYTES,
    ClientLeft,
    TooLarge,
    WrongMediaType,
    read_body,
    while_connected,
)
from octavo.router.http.errors import error_object, plain_error, retry_headers, status_of
from octavo.router.http.events import DONE, EventStream, event, events
from octavo.router.http.logprobs import LogprobShapes
from octavo.router.http.merged import merged
from octavo.router.inference import Caller, Inference
from octavo.router.replies import Response as Message
from octavo.router.slow_reader import SlowReader, patient_write
from octavo.rpc.errors import RequestError

logger = logging.getLogger(__name__)

# (members of the body, id of the header) -> what is asked for
Read = Callable[[dict[str, Any], str], Asked]


class Endpoint:
    """An ASGI application for one path."""

    def __init__(
        self,
        inference: Inference,
        read: Read,
        answers: type[Answers],
        *,
        default_max_tokens: int,
        slow_reader_s: float,
    ) -> None:
        self._inference = inference
        self._read = read
        self._answers = answers
        self._caller = Caller(protocol="http", default_max_tokens=default_max_tokens)
        self._slow_reader_s = slow_reader_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            asked = await self._asked(request)
            async with while_connected(receive):
                if asked.is_stream:
                    await self._stream(asked, send)
                else:
                    response = await self._whole(asked)
                    await response(scope, receive, send)
        except ClientLeft:
            pass
        except WrongMediaType:
            message = "the body must have the media type application/json"
            await json_response(415, plain_error(415, message))(scope, receive, send)
        except TooLarge:
            message = f"the body has more than {MAX_BODY_BYTES} bytes"
            headers = {"connection": "close"}  # the rest of it is not wanted
            await json_response(413, plain_error(413, message), headers)(scope, receive, send)
        except RequestError as error:
            await error_response(error)(scope, receive, send)

    async def _asked(self, request: Request) -> Asked:
        """Read the body; what is refused here never becomes a request, but is told in the log."""
        request_id = request.headers.get("x-request-id", "")
        try:
            asked = self._read(await read_body(request), request_id)
            for each in asked.requests:
                self._choose_adapter(each)
            return asked
        except RequestError:
            with self._inference.counted("http", request_id):
                raise

    def _choose_adapter(self, request: GenerateRequest) -> None:
        """A model that is an adapter's name means the base model with this adapter."""
        name = request.model
        if name != self._inference.model.name and name in self._inference.list_adapters():
            request.model, request.lora_adapter = "", name

    async def _whole(self, asked: Asked) -> Response:
        generate = self._inference.generate
        tasks = [asyncio.create_task(generate(each, self._caller)) for each in asked.requests]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # of several, those that run when one has failed
        body = self._answers_for(asked).whole(found)
        return json_response(200, body, {"x-request-id": asked.request_id})

    async def _stream(self, asked: Asked, send: Send) -> None:
        answers, stream = self._answers_for(asked), EventStream(send, asked.request_id)
        try:
            async with (
                aclosing(self._messages(asked)) as messages,
                patient_write(stream, self._slow_reader_s) as write,
            ):
                async for index, message in messages:
                    chunks = answers.chunks(index, message)
                    if chunks:
                        await write(events(chunks))
        except SlowReader:
            raise ClientLeft from None  # it does not read errors either
        except RequestError as error:
            if not stream.has_begun:
                raise
            await stream.end(event(error_object(error)))
            return
        await stream.end(events(answers.last_chunks()) + DONE)

    def _messages(self, asked: Asked) -> AsyncGenerator[tuple[int, Message], None]:
        return merged([self._inference.stream(each, self._caller) for each in asked.requests])

    def _answers_for(self, asked: Asked) -> Answers:
        model = self._inference.model
        name = asked.requests[0].lora_adapter or model.name
        logprobs = LogprobShapes(model.tokenizer.token_texts, shows_ids=asked.shows_tokens_as_ids)
        return self._answers(asked, name, model.eos_token_ids, logprobs)


def json_response(status: int, body: object, headers: dict[str, str] | None = None) -> Response:
    content = orjson.dumps(body)
    return Response(content, status, headers, media_type="application/json")


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """headers: beside those that say when to come back."""
    return json_response(
        status_of(error), error_object(error), {**retry_headers(error), **(headers or {})}
    )
