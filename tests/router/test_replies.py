"""What a client's messages hold."""

from octavo.inference.v1.inference_pb2 import FINISH_REASON_STOP
from octavo.router.replies import ReplyWriter, join
from octavo.router.report import RunReport
from octavo.router.sample import Completed, Finished, Reply, Started
from octavo.text.tool_calls import ToolCall
from octavo.token_logprobs import TokenLogprobs

WHOLE = Reply(
    started=Started(5, 3),
    text="so",
    token_ids=(7, 8),
    finished=Finished(FINISH_REASON_STOP, stop_token_id=8),
    completed=Completed(5, 2, RunReport(0.0)),
)


def test_a_message_holds_all_that_is_new() -> None:
    message = ReplyWriter("r", "m", text=True, token_ids=True).message(WHOLE)
    assert message is not None and message.request_id == "r"
    assert (message.started.prompt_tokens, message.started.cached_prompt_tokens) == (5, 3)
    assert (message.delta.text, list(message.delta.token_ids)) == ("so", [7, 8])
    assert message.finished.matched_stop_token_id == 8
    assert message.completed.usage.completion_tokens == 2


def test_a_message_has_no_part_that_is_not_new() -> None:
    message = ReplyWriter("r", "m", text=True, token_ids=True).message(Reply(text="so"))
    assert message is not None
    assert [field.name for field, _ in message.ListFields()] == ["request_id", "delta"]


def test_nothing_that_was_asked_for_is_no_message_and_takes_no_number() -> None:
    writer = ReplyWriter("r", "m", text=False, token_ids=False)
    assert writer.message(Reply(text="so", token_ids=(7,))) is None
    message = writer.message(WHOLE)
    assert message is not None and message.sequence == 0
    assert message.HasField("finished") and not message.HasField("delta")


def test_one_message_or_several_join_to_the_same() -> None:
    parts = [
        Reply(started=WHOLE.started),
        Reply(text="s", token_ids=(7,)),
        Reply(text="o", token_ids=(8,), finished=WHOLE.finished),
        Reply(completed=WHOLE.completed),
    ]
    several = [ReplyWriter("r", "m", text=True, token_ids=True).message(part) for part in parts]
    whole = ReplyWriter("r", "m", text=True, token_ids=True).message(WHOLE)
    assert whole is not None
    assert join([m for m in several if m is not None], "m") == join([whole], "m")


def test_calls_and_log_probabilities_share_a_message_with_text_or_stand_alone() -> None:
    call = ToolCall("call_1", "look", "{}")
    scores = TokenLogprobs((-0.5, -1.5))
    reply = Reply(text="so", token_ids=(7, 8), tool_calls=(call,), logprobs=scores)
    for include in (True, False):
        message = ReplyWriter("r", "m", text=include, token_ids=include).message(reply)
        assert message is not None
        delta = message.delta
        assert (delta.text, list(delta.token_ids)) == (("so", [7, 8]) if include else ("", []))
        assert [(c.id, c.name, c.arguments_json) for c in delta.tool_calls] == [
            ("call_1", "look", "{}")
        ]
        assert list(delta.logprobs.logprobs) == [-0.5, -1.5]
        [candidate] = join([message, message], "m").candidates
        assert (len(candidate.tool_calls), len(candidate.logprobs.logprobs)) == (2, 4)
