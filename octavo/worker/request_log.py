"""A worker's line in the log for each request that it had a part in.

`run_id` is what the router's line of the request has, too.
"""

import logging
from contextlib import AbstractContextManager

from octavo.engine.sequence import Sequence
from octavo.rpc.call_log import Fields, logged
from octavo.worker.sequence_spec import SequenceSpec


def logged_leg(logger: logging.Logger, spec: SequenceSpec) -> AbstractContextManager[Fields]:
    """Log a line when the block ends; the block may add to its fields."""
    return logged(
        logger,
        run_id=spec.key.request_id,
        attempt=spec.key.attempt,
        prompt_tokens=len(spec.prompt_token_ids),
    )


def note_sequence(fields: Fields, seq: Sequence, arrived: float) -> None:
    """What a sequence came to; the engine has done with it.

    arrived: time.monotonic() of its request.
    """
    fields["completion_tokens"] = seq.num_output_tokens
    if seq.admitted_at:
        fields["cached_prompt_tokens"] = seq.num_cached_tokens
        fields["queue_s"] = seq.admitted_at - arrived
    if seq.num_preemptions:
        fields["preemptions"] = seq.num_preemptions
