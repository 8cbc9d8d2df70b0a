"""From logits to tokens: each sequence's own rules, the draw, and log-probabilities if asked for.

    logits --+-- plain rows ----------------------------> sampler --> token
             +-- rows with rules: a float32 copy, rules -> sampler --> token
             +-- rows asked about: as the model gave them -----------> log-probabilities

A row of a sequence that asks for nothing goes straight to the sampler, wherever the others go.
"""

from collections.abc import Sequence as Listed

import numpy as np
import torch

from octavo.engine.beam_choice import choose_beams
from octavo.engine.choice import Choice, PromptScore, ScoredToken
from octavo.engine.draft_row import BatchRow
from octavo.engine.errors import InvalidLogits, NoTokenLeft
from octavo.engine.logit_rules import apply_rules
from octavo.engine.logprobs import on_host, score
from octavo.engine.sampler import sample
from octavo.engine.step_plan import Chunk


def choose(logits: torch.Tensor, seqs: Listed[BatchRow]) -> list[Choice]:
    """Choose the token behind each row.

    logits: [len(seqs), vocab_size], in the model's dtype; not changed.
    """
    special = [row for row, seq in enumerate(seqs) if not seq.is_plain]
    if not special:
        return [*sample(logits, seqs)]
    ruled = [row for row in special if seqs[row].has_rules and seqs[row].beams is None]
    if ruled:  # first of all: masks of grammars are made while a GPU still computes the logits
        own = logits[ruled].float()
        apply_rules(own, [seqs[row] for row in ruled])
    chosen: list[Choice] = [*sample(logits, seqs, skipped=frozenset(ruled))]
    choose_beams(logits, seqs, special, chosen)
    if ruled:
        _choose_by_rules(own, seqs, ruled, chosen)
    asked = [row for row in special if seqs[row].sampling.logprobs is not None]
    if asked:
        _score_chosen(logits, seqs, asked, chosen)
    return chosen


def score_prompts(logits: torch.Tensor, chunks: Listed[Chunk]) -> list[PromptScore]:
    """Log-probabilities of the prompt tokens that follow each chunk's prompt_rows.

    logits: [rows of all chunks, vocab_size].
    """
    found: list[PromptScore] = []
    start = 0
    for chunk in chunks:
        rows = chunk.prompt_rows
        found.append(_score_chunk(logits[start : start + len(rows)], chunk))
        start += len(rows)
    return found


def _score_chunk(logits: torch.Tensor, chunk: Chunk) -> PromptScore:
    rows, seq = chunk.prompt_rows, chunk.seq
    host = on_host(logits)
    if not np.isfinite(host.max(axis=1)).all():
        return InvalidLogits(f"a greatest logit in the prompt of {seq.seq_id} is not finite")
    following = seq.token_ids[rows.start + 1 : rows.stop + 1]
    return score(host, following, seq.sampling.prompt_logprobs or 0)


def _score_chosen(
    logits: torch.Tensor, seqs: Listed[BatchRow], asked: list[int], chosen: list[Choice]
) -> None:
    """Give the tokens of the asked rows their log-probabilities."""
    for row, line in zip(asked, on_host(logits[asked]), strict=True):
        token_id = chosen[row]
        if isinstance(token_id, int):
            scores = score(line[None], [token_id], seqs[row].sampling.logprobs or 0)
            chosen[row] = ScoredToken(token_id, scores)


def _choose_by_rules(
    own: torch.Tensor, seqs: Listed[BatchRow], ruled: list[int], chosen: list[Choice]
) -> None:
    """Set `chosen` of the ruled rows, which holds InvalidLogits where the model's own are that.

    own: [len(ruled), vocab_size], by their rules.
    """
    ruled_seqs = [seqs[row] for row in ruled]
    for row, seq, choice in zip(ruled, ruled_seqs, sample(own, ruled_seqs), strict=True):
        if isinstance(chosen[row], InvalidLogits):
            continue
        if isinstance(choice, InvalidLogits):
            choice = NoTokenLeft(
                f"no token is left to choose for output token {seq.num_output_tokens}: "
                f"{_why_none_is_left(seq)}"
            )
        chosen[row] = choice


def _why_none_is_left(seq: BatchRow) -> str:
    constraint, matcher = seq.sampling.constraint, seq.rules.matcher
    if constraint is None or matcher is None:
        return "allowed_token_ids and bad_words rule out every one"
    if matcher.failure is not None:
        return f"{constraint.field}: {matcher.failure}"
    others = "min_tokens, allowed_token_ids and bad_words rule out the others"
    return f"{constraint.field} leaves few, and {others}"
