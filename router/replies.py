"""Writes events of a generation as messages of the public API."""

from google.protobuf.duration_pb2 import Duration

from octavo.inference.v1 import inference_pb2
from octavo.router.generation import Completed, Delta, Event, Finished, Prompt, Started
from octavo.router.report import RunReport
from octavo.rpc.logprobs import logprobs_to_proto

Response = inference_pb2.StreamGenerateResponse


class ReplyWriter:
    """Numbers the messages of one call."""

    def __init__(self, request_id: str, model: str, *, text: bool, token_ids: bool) -> None:
        self._request_id = request_id
        self._model = model
        self._include_text = text
        self._include_token_ids = token_ids
        self._sequence = 0

    def reply(self, event: Event) -> Response | None:
        """The next message; None for a delta that holds nothing its caller asked for."""
        if isinstance(event, Delta):
            message = self._delta(event)
            if message is None:
                return None
        else:
            message = Response(request_id=self._request_id, sequence=self._sequence)
        match event:
            case Started():
                message.started.model = self._model
                message.started.prompt_tokens = event.num_prompt_tokens
                message.started.cached_prompt_tokens = event.num_cached_tokens
                if event.prompt is not None:
                    message.started.prompt.CopyFrom(self._prompt(event.prompt))
            case Finished():
                message.finished.finish_reason = event.reason
                if event.stop_text is not None:
                    message.finished.matched_stop_text = event.stop_text
                elif event.stop_token_id is not None:
                    message.finished.matched_stop_token_id = event.stop_token_id
            case Completed():
                message.completed.CopyFrom(_completed(event))
        self._sequence += 1
        return message

    def _delta(self, event: Delta) -> Response | None:
        text = event.text if self._include_text else ""
        token_ids = event.token_ids if self._include_token_ids else ()
        if not (text or token_ids or event.tool_calls or event.logprobs):
            return None
        delta = Response.Delta(text=text, token_ids=token_ids)
        for call in event.tool_calls:
            delta.tool_calls.add(id=call.id, name=call.name, arguments_json=call.arguments)
        if event.logprobs is not None:
            delta.logprobs.CopyFrom(logprobs_to_proto(event.logprobs))
        return Response(request_id=self._request_id, sequence=self._sequence, delta=delta)

    @staticmethod
    def _prompt(prompt: Prompt) -> inference_pb2.Prompt:
        message = inference_pb2.Prompt(text=prompt.text, token_ids=prompt.token_ids)
        if prompt.logprobs is not None:
            message.logprobs.CopyFrom(logprobs_to_proto(prompt.logprobs))
        return message


def join(messages: list[Response], model: str) -> inference_pb2.GenerateResponse:
    """The unary reply that says the same as a whole stream."""
    candidate = inference_pb2.Candidate()
    whole = inference_pb2.GenerateResponse(model=model)
    for message in messages:
        whole.request_id = message.request_id
        match message.WhichOneof("event"):
            case "started" if message.started.HasField("prompt"):
                whole.prompt.CopyFrom(message.started.prompt)
            case "delta":
                candidate.text += message.delta.text
                candidate.token_ids.extend(message.delta.token_ids)
                candidate.tool_calls.extend(message.delta.tool_calls)
                if message.delta.HasField("logprobs"):
                    _extend(candidate.logprobs, message.delta.logprobs)
            case "finished":
                finished = message.finished
                candidate.finish_reason = finished.finish_reason
                matched = finished.WhichOneof("matched_stop")
                if matched is not None:
                    setattr(candidate, matched, getattr(finished, matched))
            case "completed":
                whole.usage.CopyFrom(message.completed.usage)
                whole.timing.CopyFrom(message.completed.timing)
    whole.candidates.append(candidate)
    return whole


def _extend(whole: inference_pb2.TokenLogprobs, new: inference_pb2.TokenLogprobs) -> None:
    whole.MergeFrom(new)  # arrays grow; num_top is the same in all


def _completed(event: Completed) -> Response.Completed:
    report = event.report
    return Response.Completed(
        usage=inference_pb2.Usage(
            prompt_tokens=event.num_prompt_tokens,
            completion_tokens=event.num_output_tokens,
            cached_prompt_tokens=report.cached_prompt_tokens,
            transferred_prompt_tokens=min(report.transferred_tokens, event.num_prompt_tokens),
        ),
        timing=_timing(report, event.num_output_tokens),
    )


def _timing(report: RunReport, num_output_tokens: int) -> inference_pb2.Timing:
    route = report.route
    timing = inference_pb2.Timing()
    if route is not None and route.prefill is not None:
        timing.prefill_worker = route.prefill.worker.facts.worker_id
    decoded = num_output_tokens > 1 or not timing.prefill_worker
    if route is not None and route.decode is not None and decoded:
        timing.decode_worker = route.decode.worker.facts.worker_id
    for name, seconds in (
        ("queue", report.queue_s),
        ("prefill", report.prefill_s),
        ("transfer", report.transfer_s),
        ("time_to_first_token", report.first_token_s),
        ("total", report.total_s),
    ):
        if seconds is not None:
            getattr(timing, name).CopyFrom(_duration(seconds))
    return timing


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(max(round(seconds * 1e9), 0))
    return duration
