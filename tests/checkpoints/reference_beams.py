"""What `transformers` finds by beam search, in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from checkpoints.reference import reference_model
from octavo.sampling_params import BeamSearch

Found = list[tuple[list[int], float]]  # tokens and score of each beam, best first


def reference_beams(
    path: Path,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    beams: BeamSearch,
    end_ids: Sequence[int],
    **options: Any,
) -> Found:
    """All beams; end_ids: end-of-sequence and stop tokens."""
    prompt = torch.tensor([list(prompt_ids)])
    output = reference_model(path, torch.float32).generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        temperature=None,
        top_p=None,
        top_k=None,
        pad_token_id=0,
        eos_token_id=list(end_ids) or None,
        num_beams=beams.width,
        num_return_sequences=beams.width,
        length_penalty=beams.length_penalty,
        early_stopping=beams.early_stopping,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    if beams.width == 1:  # a greedy search, which has no score
        return [(output.sequences[0, prompt.shape[1] :].tolist(), 0.0)]
    lengths = (output.beam_indices >= 0).sum(dim=1).tolist()
    start = prompt.shape[1]
    return [
        (row[start : start + length], score)
        for row, length, score in zip(
            output.sequences.tolist(), lengths, output.sequences_scores.tolist(), strict=True
        )
    ]
