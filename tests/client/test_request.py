"""What callers write is what the service reads."""

import pytest

from octavo import BeamSearch, SamplingParams
from octavo.client.request import generate_request, tokenize_request
from octavo.rpc.sampling import sampling_from_proto

CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]


def test_text_chat_and_token_ids_go_into_their_own_field() -> None:
    assert generate_request("Hi", None, {}).text == "Hi"
    assert list(generate_request([5, 6], None, {}).token_ids.ids) == [5, 6]
    messages = generate_request(CHAT, None, {}).chat.messages
    assert [(m.role, m.content) for m in messages] == [("system", "Be short."), ("user", "Hi")]
    assert generate_request([], None, {}).WhichOneof("input") == "token_ids"
    assert generate_request("", None, {}).WhichOneof("input") == "text"


def test_only_given_keywords_are_sent_so_that_the_model_fills_in_the_rest() -> None:
    request = generate_request("Hi", None, {"temperature": 0.0, "stop": "END", "cache_salt": "a"})
    assert [field.name for field, _ in request.sampling.ListFields()] == ["temperature", "stop"]
    assert (request.sampling.temperature, list(request.sampling.stop)) == (0.0, ["END"])
    assert (request.cache_salt, request.HasField("add_special_tokens")) == ("a", False)


def test_sampling_params_are_sent_whole() -> None:
    params = SamplingParams(seed=7, stop_token_ids=(3,), include_stop_text=True)
    request = generate_request("Hi", params, {"model": "m", "add_special_tokens": False})
    assert request.sampling.HasField("temperature") and request.sampling.HasField("top_k")
    assert request.sampling.max_tokens == params.max_tokens
    assert (request.sampling.seed, list(request.sampling.stop_token_ids)) == (7, [3])
    assert request.output.include_stop_text and request.output.skip_special_tokens
    assert (request.model, request.add_special_tokens) == ("m", False)


def test_a_bad_value_is_named_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="max_tokens must be 1 to"):
        generate_request("Hi", None, {"max_tokens": -1})
    with pytest.raises(ValueError, match="not both: top_k"):
        generate_request("Hi", SamplingParams(), {"top_k": 1})
    with pytest.raises(TypeError, match="temprature"):
        generate_request("Hi", None, {"temprature": 1})  # type: ignore[typeddict-unknown-key]


def test_samples_and_beams_are_sent() -> None:
    request = generate_request("Hi", None, {"n": 2, "best_of": 3})
    assert (request.sampling.n, request.sampling.best_of) == (2, 3)
    beams = BeamSearch(3, 0.5, "never")
    for request in (
        generate_request("Hi", None, {"beam_search": beams, "n": 2}),
        generate_request("Hi", SamplingParams(beam_search=beams, n=2), {}),
    ):
        assert request.sampling.n == 2 and not request.sampling.HasField("best_of")
        sent = sampling_from_proto(request.sampling, request.output)
        assert sent.beam_search == beams
    with pytest.raises(ValueError, match="n must be at most beam_search.width, 3, got 4"):
        generate_request("Hi", None, {"beam_search": beams, "n": 4})


def test_token_ids_need_no_tokenizing() -> None:
    assert tokenize_request("Hi", "m", False).text == "Hi"
    assert tokenize_request(CHAT, "", True).chat.messages[1].content == "Hi"
    with pytest.raises(ValueError, match="token ids"):
        tokenize_request([1], "", True)


def test_rules_and_log_probabilities_go_into_their_own_fields() -> None:
    params = SamplingParams(
        logit_bias={3: -1.0}, bad_words="no", bad_words_ids=[[1], [2, 3]], logprobs=0
    )
    names = {"logit_bias": {3: -1.0}, "bad_words": "no", "bad_words_ids": [[1], [2, 3]]}
    for request in (
        generate_request("Hi", params, {"echo": True}),
        generate_request("Hi", None, {**names, "logprobs": 0, "echo": True}),  # type: ignore[typeddict-item]
    ):
        assert dict(request.sampling.logit_bias) == {3: -1.0}
        assert list(request.sampling.bad_words) == ["no"]
        assert [list(word.ids) for word in request.sampling.bad_words_ids] == [[1], [2, 3]]
        assert request.output.HasField("logprobs") and request.output.logprobs == 0
        assert not request.output.HasField("prompt_logprobs") and request.output.echo
