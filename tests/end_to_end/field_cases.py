"""A case or more for each field of SamplingParams and OutputOptions."""

from typing import Any

from octavo import BeamSearch

IM_END = 2
SCHEMA = {
    "type": "object",
    "properties": {
        "größe": {"type": "integer", "minimum": 0, "maximum": 99},
        "c": {"type": "string", "maxLength": 5},
    },
    "required": ["größe", "c"],
    "additionalProperties": False,
}
BASE: dict[str, Any] = {"seed": 11, "max_tokens": 44, "temperature": 1.0, "logprobs": 4}

SEARCH = {"seed": None, "logprobs": None}  # what a search refuses
LONG = BeamSearch(3, 2.0, "never")

# Each case changes BASE; where it must show, its result differs from that of BASE.
CASES: dict[str, list[dict[str, Any]]] = {
    "max_tokens": [{"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": 50}],
    "min_tokens": [{"min_tokens": 9, "logit_bias": {IM_END: 100.0}}],
    "temperature": [{"temperature": 0.0}, {"temperature": 0.4}, {"temperature": 3.0}],
    "top_p": [{"top_p": 0.5}],
    "top_k": [{"top_k": 3}],
    "min_p": [{"min_p": 0.3}],
    "presence_penalty": [{"presence_penalty": 2.0, "temperature": 0.0}, {"presence_penalty": -2.0}],
    "frequency_penalty": [
        {"frequency_penalty": 2.0, "temperature": 0.0},
        {"frequency_penalty": -1.5},
    ],
    "repetition_penalty": [
        {"repetition_penalty": 1.8, "temperature": 0.0},
        {"repetition_penalty": 0.7},
    ],
    "seed": [{"seed": 12}, {"seed": 2**64 - 1}],
    "stop": [{"stop": ["e", " t", "a"]}, {"stop": ["e", " t", "a"], "min_tokens": 5}],
    "stop_token_ids": [{"stop_token_ids": list(range(100, 164))}],
    "ignore_eos": [{"ignore_eos": True, "logit_bias": {IM_END: 5.0}}],
    "logit_bias": [{"logit_bias": {50: 100.0}}, {"logit_bias": {50: 6.5, 60: 6.5, 61: -100.0}}],
    "bad_words": [{"bad_words": ["e", "the", "worker"], "temperature": 0.0}],
    "bad_words_ids": [{"bad_words_ids": [[i] for i in range(0, 384, 2)]}],
    "n": [{"n": 3}, {"n": 2, "temperature": 0.0}],
    "best_of": [{"best_of": 3}, {"n": 2, "best_of": 3, "logprobs": None}],
    "beam_search": [
        SEARCH | {"beam_search": BeamSearch(3)},
        SEARCH | {"n": 3, "beam_search": LONG},
    ],
    "allowed_token_ids": [{"allowed_token_ids": [40, 41, 42, IM_END]}],
    "prompt_lookup": [{"prompt_lookup": True}, {"prompt_lookup": False}],
    "json_schema": [
        {"json_schema": SCHEMA},
        {"json_schema": SCHEMA, "temperature": 0.0, "repetition_penalty": 1.3},
    ],
    "regex": [{"regex": "[a-z]{3,5}( [0-9]{2,40})+"}, {"regex": "x", "max_tokens": 1}],
    "ebnf_grammar": [
        {"ebnf_grammar": 'start: "é" ("," N)+\nN: /[0-9]{2}/', "logit_bias": {IM_END: -5.0}},
        {"ebnf_grammar": 'root ::= "a" [b-d]+', "min_tokens": 9},
    ],
    "choice": [{"choice": ["the prefill worker", "the decode worker", "🙂"]}],
    "json_object": [{"json_object": True}],
    "include_text": [{}],  # and the next: the table's test sends them as messages
    "include_token_ids": [{}],
    "logprobs": [{"logprobs": None}, {"logprobs": 0}, {"logprobs": 20}],
    "prompt_logprobs": [{"prompt_logprobs": 0}, {"prompt_logprobs": 20, "max_tokens": 1}],
    "include_stop_text": [{"stop": ["e", " t", "a"], "include_stop_text": True}],
    "skip_special_tokens": [{"skip_special_tokens": False, "logit_bias": {0: 100.0, 1: 100.0}}],
    "echo": [{"echo": True}],
}
