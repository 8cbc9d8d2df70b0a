"""Writes replies of a generation as messages of the public API."""

from google.protobuf.duration_pb2 import Duration

from octavo.inference.v1 import inference_pb2
from octavo.ranking import best, mean_logprob
from octavo.router.report import RunReport
from octavo.router.sample import Completed, Finished, Prompt, Reply
from octavo.rpc.durations import duration
from octavo.rpc.logprobs import logprobs_to_proto
from octavo.sampling_params import SamplingParams

Response = inference_pb2.StreamGenerateResponse


class ReplyWriter:
    """Numbers the messages of one call."""

    def __init__(self, request_id: str, model: str, *, text: bool, token_ids: bool) -> None:
        self._request_id = request_id
        self._model = model
        self._include_text = text
        self._include_token_ids = token_ids
        self._sequence = 0

    def message(self, reply: Reply) -> Response | None:
        """The next message; None for one that holds nothing its caller asked for."""
        text = reply.text if self._include_text else ""
        token_ids = reply.token_ids if self._include_token_ids else ()
        message = Response(request_id=self._request_id, sequence=self._sequence)
        if text or token_ids or reply.tool_calls or reply.logprobs is not None:
            if reply.sample:
                message.delta.index = reply.sample
            message.delta.text = text
            message.delta.token_ids.extend(token_ids)
            for call in reply.tool_calls:
                message.delta.tool_calls.add(
                    id=call.id, name=call.name, arguments_json=call.arguments
                )
            if reply.logprobs is not None:
                message.delta.logprobs.CopyFrom(logprobs_to_proto(reply.logprobs))
        elif not (reply.started or reply.finished or reply.completed):
            return None
        if reply.started is not None:
            message.started.model = self._model
            message.started.prompt_tokens = reply.started.num_prompt_tokens
            message.started.cached_prompt_tokens = reply.started.num_cached_tokens
            if reply.started.prompt is not None:
                message.started.prompt.CopyFrom(self._prompt(reply.started.prompt))
        if reply.finished is not None:
            message.finished.CopyFrom(_finished(reply.finished, reply.sample))
        if reply.completed is not None:
            message.completed.CopyFrom(_completed(reply.completed))
        self._sequence += 1
        return message

    @staticmethod
    def _prompt(prompt: Prompt) -> inference_pb2.Prompt:
        message = inference_pb2.Prompt(text=prompt.text, token_ids=prompt.token_ids)
        if prompt.logprobs is not None:
            message.logprobs.CopyFrom(logprobs_to_proto(prompt.logprobs))
        return message


def join(messages: list[Response], model: str) -> inference_pb2.GenerateResponse:
    """The unary reply that says the same as a whole stream."""
    whole = inference_pb2.GenerateResponse(model=model)
    candidates: dict[int, inference_pb2.Candidate] = {}
    for message in messages:
        whole.request_id = message.request_id
        if message.started.HasField("prompt"):
            whole.prompt.CopyFrom(message.started.prompt)
        if message.HasField("delta"):
            _add(
                message.delta, candidates.setdefault(message.delta.index, inference_pb2.Candidate())
            )
        if message.HasField("finished"):
            finished = message.finished
            candidate = candidates.setdefault(finished.index, inference_pb2.Candidate())
            candidate.finish_reason = finished.finish_reason
            matched = finished.WhichOneof("matched_stop")
            if matched is not None:
                setattr(candidate, matched, getattr(finished, matched))
            if finished.HasField("score"):
                candidate.cumulative_logprob = finished.cumulative_logprob
                candidate.score = finished.score
        if message.HasField("completed"):
            whole.usage.CopyFrom(message.completed.usage)
            whole.timing.CopyFrom(message.completed.timing)
    for index, candidate in sorted(candidates.items()):
        candidate.index = index
        if candidate.HasField("logprobs"):
            candidate.cumulative_logprob = sum(candidate.logprobs.logprobs)
        whole.candidates.append(candidate)
    return whole


def keep_best(whole: inference_pb2.GenerateResponse, sampling: SamplingParams) -> None:
    """Leave the n best candidates, the best first."""
    found = list(whole.candidates)
    scores = [mean_logprob(candidate.logprobs.logprobs) for candidate in found]
    del whole.candidates[:]
    for index, place in enumerate(best(scores, sampling.n)):
        candidate = whole.candidates.add()
        candidate.CopyFrom(found[place])
        candidate.index = index
        candidate.score = scores[place]
        if sampling.logprobs is None:
            candidate.ClearField("logprobs")


def _add(delta: Response.Delta, candidate: inference_pb2.Candidate) -> None:
    candidate.text += delta.text
    candidate.token_ids.extend(delta.token_ids)
    candidate.tool_calls.extend(delta.tool_calls)
    if delta.HasField("logprobs"):
        # Arrays grow; num_top is the same in all.
        candidate.logprobs.MergeFrom(delta.logprobs)


def _finished(finished: Finished, index: int) -> Response.Finished:
    message = Response.Finished(index=index, finish_reason=finished.reason)
    if finished.stop_text is not None:
        message.matched_stop_text = finished.stop_text
    elif finished.stop_token_id is not None:
        message.matched_stop_token_id = finished.stop_token_id
    if finished.beam is not None:
        message.cumulative_logprob, message.score = finished.beam
    return message


def _completed(completed: Completed) -> Response.Completed:
    report, moved = completed.report, completed.moved
    return Response.Completed(
        usage=inference_pb2.Usage(
            prompt_tokens=completed.num_prompt_tokens,
            completion_tokens=completed.num_output_tokens,
            cached_prompt_tokens=report.cached_prompt_tokens,
            transferred_prompt_tokens=moved.transferred,
            cached_on_prefill_worker=moved.cached_on_prefill_worker,
            cached_on_decode_worker=moved.cached_on_decode_worker,
        ),
        timing=_timing(report, completed.num_further_tokens),
    )


def _timing(report: RunReport, num_further_tokens: int) -> inference_pb2.Timing:
    """num_further_tokens: output tokens but the first of each sample."""
    route = report.route
    timing = inference_pb2.Timing(
        queue=_told(report.queue_s),
        prefill=_told(report.prefill_s),
        transfer=_told(report.transfer_s) if num_further_tokens > 0 else None,
        time_to_first_token=_told(report.first_token_s),
        total=_told(report.total_s),
    )
    if route is not None and route.prefill is not None:
        timing.prefill_worker = route.prefill.worker.facts.worker_id
    decoded = num_further_tokens > 0 or not timing.prefill_worker
    if route is not None and route.decode is not None and decoded:
        timing.decode_worker = route.decode.worker.facts.worker_id
    return timing


def _told(seconds: float | None) -> Duration | None:
    return None if seconds is None else duration(seconds)
