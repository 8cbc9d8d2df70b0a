"""Answers of /v1/chat/completions: a message of the assistant, with its tool calls."""

from collections import Counter
from collections.abc import Iterable, Sequence

from octavo.inference.v1 import inference_pb2 as pb
from octavo.router.http.answers import Answers, Object
from octavo.router.http.asked import Asked
from octavo.router.http.logprobs import LogprobShapes


class Chats(Answers):
    """Of one request."""

    id_prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self, asked: Asked, model: str, eos_token_ids: Iterable[int], logprobs: LogprobShapes
    ) -> None:
        super().__init__(asked, model, eos_token_ids, logprobs)
        self._num_calls: Counter[int] = Counter()  # of each choice so far

    def whole(self, responses: Sequence[pb.GenerateResponse]) -> Object:
        made = super().whole(responses)
        prompt = responses[0].prompt
        if prompt.HasField("logprobs"):
            made["prompt_logprobs"] = self.logprobs.prompt(prompt)
        if self.asked.include_token_ids:
            made["prompt_token_ids"] = list(prompt.token_ids)
        return made

    def choice(self, index: int, candidate: pb.Candidate, response: pb.GenerateResponse) -> Object:
        calls = [_call(call) for call in candidate.tool_calls[: self.asked.max_tool_calls]]
        message: Object = {"role": "assistant", "content": candidate.text, "refusal": None}
        if calls:
            message |= {"tool_calls": calls, "content": candidate.text or None}
        made: Object = {"index": index, "message": message, "logprobs": None}
        if candidate.HasField("logprobs"):
            made["logprobs"] = self.logprobs.chat(candidate.token_ids, candidate.logprobs)
        if self.asked.include_token_ids:
            made["token_ids"] = list(candidate.token_ids)
        return made | self.ending(candidate)

    def start(self, index: int, started: pb.StreamGenerateResponse.Started) -> list[Object]:
        made = self._choice(index, {"role": "assistant", "content": ""})
        if self.asked.include_token_ids:
            made["prompt_token_ids"] = list(started.prompt.token_ids)
        return [made]

    def delta(self, index: int, delta: pb.StreamGenerateResponse.Delta) -> Object:
        said: Object = {"content": delta.text} if delta.text else {}
        if delta.tool_calls:
            calls = self._new_calls(index, delta.tool_calls)
            said |= {"tool_calls": calls} if calls else {}
        made = self._choice(index, said)
        if delta.HasField("logprobs"):
            made["logprobs"] = self.logprobs.chat(delta.token_ids, delta.logprobs)
        if self.asked.include_token_ids:
            made["token_ids"] = list(delta.token_ids)
        return made

    def empty(self, index: int) -> Object:
        return self._choice(index, {})

    def _new_calls(self, index: int, calls: Iterable[pb.ToolCall]) -> list[Object]:
        """Calls that the request wants, numbered within their choice."""
        made: list[Object] = []
        for call in calls:
            number, limit = self._num_calls[index], self.asked.max_tool_calls
            self._num_calls[index] += 1
            if limit is None or number < limit:
                made.append({"index": number} | _call(call))
        return made

    @staticmethod
    def _choice(index: int, delta: Object) -> Object:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call(call: pb.ToolCall) -> Object:
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": call.id, "type": "function", "function": function}
