"""What is told of generations, in the shapes of the OpenAI API: chunk by chunk, or whole.

StreamGenerateResponse, ... --> chunks --> events
GenerateResponse, ...       --> one object

`stop_reason`, `token_ids`, `prompt_token_ids` and `prompt_logprobs` are members that vLLM added.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.inference.v1 import inference_pb2 as pb
from octavo.router.http.asked import Asked
from octavo.router.http.logprobs import LogprobShapes

REASONS: Mapping[int, str] = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_STOP_SEQUENCE: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}
Finished = pb.Candidate | pb.StreamGenerateResponse.Finished
Object = dict[str, Any]


class Answers:
    """Of one request; `Chats` and `Completions` say what a choice looks like."""

    id_prefix = ""
    whole_kind = ""
    chunk_kind = ""

    def __init__(
        self, asked: Asked, model: str, eos_token_ids: Iterable[int], logprobs: LogprobShapes
    ) -> None:
        """model: the name that is told back."""
        self.asked = asked
        self.logprobs = logprobs
        self._eos_token_ids = frozenset(eos_token_ids)
        self._shared = {
            "id": f"{self.id_prefix}-{asked.request_id}",
            "created": int(time.time()),
            "model": model,
        }
        self._usages: list[pb.Usage] = []

    def whole(self, responses: Sequence[pb.GenerateResponse]) -> Object:
        """The body that answers without a stream; one response for each prompt."""
        choices = [
            self.choice(index * self.asked.num_choices + candidate.index, candidate, response)
            for index, response in enumerate(responses)
            for candidate in response.candidates
        ]
        usage = usage_of([response.usage for response in responses])
        return self._head(self.whole_kind) | {"choices": choices, "usage": usage}

    def chunks(self, prompt: int, message: pb.StreamGenerateResponse) -> list[Object]:
        """What one message of a prompt's stream says."""
        base = prompt * self.asked.num_choices
        choices: list[Object] = []
        if message.HasField("started"):
            for index in range(self.asked.num_choices):
                choices += self.start(base + index, message.started)
        if message.HasField("delta"):
            choices.append(self.delta(base + message.delta.index, message.delta))
        if message.HasField("finished"):
            self._finish(base + message.finished.index, message.finished, choices)
        if message.HasField("completed"):
            self._usages.append(message.completed.usage)
        tail: Object = {"usage": None} if self.asked.include_usage else {}
        head = self._head(self.chunk_kind)
        return [head | {"choices": [choice]} | tail for choice in choices]

    def last_chunks(self) -> list[Object]:
        """What follows all streams: usage, if it was asked for."""
        if not self.asked.include_usage:
            return []
        usage = usage_of(self._usages)
        return [self._head(self.chunk_kind) | {"choices": [], "usage": usage}]

    def choice(self, index: int, candidate: pb.Candidate, response: pb.GenerateResponse) -> Object:
        """One whole output."""
        raise NotImplementedError

    def start(self, index: int, started: pb.StreamGenerateResponse.Started) -> list[Object]:
        """What comes before the first token of an output."""
        raise NotImplementedError

    def delta(self, index: int, delta: pb.StreamGenerateResponse.Delta) -> Object:
        """More of an output."""
        raise NotImplementedError

    def empty(self, index: int) -> Object:
        """Nothing more of an output, which has ended."""
        raise NotImplementedError

    def ending(self, finished: Finished) -> Object:
        """Why an output ended; the stop reason is null where the model ended it."""
        reason: str | int | None = None
        match finished.WhichOneof("matched_stop"):
            case "matched_stop_text":
                reason = finished.matched_stop_text
            case "matched_stop_token_id":
                token_id = finished.matched_stop_token_id
                reason = None if token_id in self._eos_token_ids else token_id
        name = REASONS.get(finished.finish_reason, "stop")
        return {"finish_reason": name, "stop_reason": reason}

    def _finish(
        self, index: int, finished: pb.StreamGenerateResponse.Finished, choices: list[Object]
    ) -> None:
        """Say so with the last tokens, if they are told at the same time."""
        if not choices or choices[-1]["index"] != index:
            choices.append(self.empty(index))
        choices[-1] |= self.ending(finished)

    def _head(self, kind: str) -> Object:
        return self._shared | {"object": kind}


def usage_of(usages: Sequence[pb.Usage]) -> Object:
    """Of all prompts together."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    output = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.cached_prompt_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
