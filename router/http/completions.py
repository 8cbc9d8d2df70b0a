"""Answers of /v1/completions: text that goes on from a prompt; with `echo`, behind it."""

from collections.abc import Iterable

from octavo.inference.v1 import inference_pb2 as pb
from octavo.router.http.answers import Answers, Object
from octavo.router.http.asked import Asked
from octavo.router.http.logprobs import LogprobShapes, Rows, output_rows, prompt_rows


class Completions(Answers):
    """Of one request."""

    id_prefix = "cmpl"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self, asked: Asked, model: str, eos_token_ids: Iterable[int], logprobs: LogprobShapes
    ) -> None:
        super().__init__(asked, model, eos_token_ids, logprobs)
        self._offsets: dict[int, int] = {}  # where the next token of each choice stands in its text

    def choice(self, index: int, candidate: pb.Candidate, response: pb.GenerateResponse) -> Object:
        prompt = response.prompt
        rows, text = self._echoed(prompt)
        if candidate.HasField("logprobs"):
            rows += output_rows(candidate.token_ids, candidate.logprobs)
        made = self._choice(index, text + candidate.text, rows) | self.ending(candidate)
        if prompt.HasField("logprobs"):
            made["prompt_logprobs"] = self.logprobs.prompt(prompt)
        if self.asked.include_token_ids:
            made["token_ids"] = list(candidate.token_ids)
            made["prompt_token_ids"] = list(prompt.token_ids)
        return made

    def start(self, index: int, started: pb.StreamGenerateResponse.Started) -> list[Object]:
        rows, text = self._echoed(started.prompt)
        if not (text or rows or self.asked.include_token_ids):
            return []
        made = self._choice(index, text, rows) | {"finish_reason": None}
        if self.asked.include_token_ids:
            made["prompt_token_ids"] = list(started.prompt.token_ids)
        return [made]

    def delta(self, index: int, delta: pb.StreamGenerateResponse.Delta) -> Object:
        rows = output_rows(delta.token_ids, delta.logprobs) if delta.HasField("logprobs") else []
        made = self._choice(index, delta.text, rows) | {"finish_reason": None}
        if self.asked.include_token_ids:
            made["token_ids"] = list(delta.token_ids)
        return made

    def empty(self, index: int) -> Object:
        return self._choice(index, "", [])

    def _echoed(self, prompt: pb.Prompt) -> tuple[Rows, str]:
        """The prompt as far as it stands before the output."""
        if not self.asked.echoes:
            return [], ""
        return prompt_rows(prompt) if prompt.HasField("logprobs") else [], prompt.text

    def _choice(self, index: int, text: str, rows: Rows) -> Object:
        if not rows:
            return {"index": index, "text": text, "logprobs": None}
        logprobs, end = self.logprobs.completion(rows, self._offsets.get(index, 0))
        self._offsets[index] = end
        return {"index": index, "text": text, "logprobs": logprobs}
