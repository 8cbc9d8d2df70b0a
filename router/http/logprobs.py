"""Log-probabilities in the shapes of the OpenAI API and, of prompts, in vLLM's."""

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.inference.v1.inference_pb2 import Prompt
from octavo.inference.v1.inference_pb2 import TokenLogprobs as Message
from octavo.rpc.logprobs import logprobs_from_proto
from octavo.text.token_text import TokenTexts
from octavo.token_logprobs import TokenLogprob

Rows = list[TokenLogprob | None]  # None: the first token of a prompt, before which nothing stands


class LogprobShapes:
    """Of one request."""

    def __init__(self, texts: TokenTexts, *, shows_ids: bool) -> None:
        """shows_ids: a token is written as token_id:7, not as its text."""
        self._texts = texts
        self._shows_ids = shows_ids

    def chat(self, token_ids: Sequence[int], message: Message) -> dict[str, Any]:
        """The `logprobs` of a chat's choice."""
        content = [
            self._entry(row.token_id, row.logprob)
            | {"top_logprobs": [self._entry(*pair) for pair in row.top]}
            for row in logprobs_from_proto(message).rows(token_ids)
        ]
        return {"content": content, "refusal": None}

    def completion(
        self, rows: Iterable[TokenLogprob | None], text_offset: int
    ) -> tuple[dict[str, Any], int]:
        """A completion's `logprobs` from a place in its text on, and where they end."""
        found: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for row in rows:
            token = "" if row is None else self._token(row.token_id)
            found["tokens"].append(token)
            found["token_logprobs"].append(None if row is None else row.logprob)
            found["top_logprobs"].append(None if row is None else self._top(row, token))
            found["text_offset"].append(text_offset)
            text_offset += 0 if row is None else len(self._texts.of(row.token_id)[0])
        return found, text_offset

    def prompt(self, prompt: Prompt) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: by token id, of the prompt's own token and the likeliest."""
        return [None if row is None else self._ranked(row) for row in prompt_rows(prompt)]

    def _ranked(self, row: TokenLogprob) -> dict[str, Any]:
        entries = {
            str(token_id): {
                "logprob": logprob,
                "rank": rank,
                "decoded_token": self._texts.of(token_id)[0],
            }
            for rank, (token_id, logprob) in enumerate(row.top, start=1)
        }
        own = {"logprob": row.logprob, "rank": None, "decoded_token": self._token(row.token_id)}
        return {str(row.token_id): entries.pop(str(row.token_id), own)} | entries

    def _top(self, row: TokenLogprob, token: str) -> dict[str, float]:
        likeliest = {self._token(token_id): logprob for token_id, logprob in reversed(row.top)}
        return {token: row.logprob} | likeliest

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        _, raw = self._texts.of(token_id)
        return {"token": self._token(token_id), "logprob": logprob, "bytes": list(raw)}

    def _token(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._shows_ids else self._texts.of(token_id)[0]


def output_rows(token_ids: Sequence[int], message: Message) -> Rows:
    return list(logprobs_from_proto(message).rows(token_ids))


def prompt_rows(prompt: Prompt) -> Rows:
    """Of every prompt token; None for the first."""
    return [None, *logprobs_from_proto(prompt.logprobs).rows(prompt.token_ids[1:])]
