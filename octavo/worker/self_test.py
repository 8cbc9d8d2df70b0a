"""Sees that an engine computes before anybody hears of its worker.

    prompt --prefill--> t1 --decode--> t2 --decode--> t3
    prompt, t1, t2 --prefill--------------------> must be t3, as likely as before

Both ways lead through other kernels to the same logits. What both get wrong alike (another model's
weights) is not seen here: the fingerprint tells models apart. The test ends below the smallest
block, so that nothing of it is cached.
"""

import logging
import time

from octavo.block_key import GROUP_KEY_BYTES
from octavo.engine.engine import Engine
from octavo.engine.sequence import Sequence
from octavo.sampling_params import SamplingParams
from octavo.token_logprobs import TokenLogprob

logger = logging.getLogger(__name__)

NUM_PROMPT = 5
NUM_OUTPUT = 3
NUM_TOP = 8
# How far apart the two ways may be, in nats: roundings of short floats, fp8 KV, integer weights.
# Unlike states differ by several nats in trained models.
MAX_DIFFERENCE = 0.5


class SelfTestFailed(Exception):
    """The engine's kernels disagree, or its logits are no numbers: it must not serve."""


def check_engine(engine: Engine) -> None:
    """Run the test on this thread, before an EngineLoop has the engine.

    Raises:
        SelfTestFailed: saying what differed.
    """
    began = time.monotonic()
    vocab_size = engine.model_config.vocab_size
    num_prompt = min(NUM_PROMPT, engine.max_model_len - NUM_OUTPUT)
    if num_prompt < 1:
        return  # a context of three tokens serves nobody
    prompt = [7919 * index % vocab_size for index in range(1, num_prompt + 1)]
    decoded = _run(engine, prompt, NUM_OUTPUT)
    *before, last = decoded
    (again,) = _run(engine, prompt + [row.token_id for row in before], 1)
    likely = dict(again.top) | {again.token_id: again.logprob}
    difference = abs(likely.get(last.token_id, float("inf")) - last.logprob)
    if not difference <= MAX_DIFFERENCE:
        raise SelfTestFailed(
            f"after {[*prompt, *(row.token_id for row in before)]} decoding gives token "
            f"{last.token_id} (log-probability {last.logprob:.3f}), prefill {again.token_id} "
            f"({again.logprob:.3f}): this device or these kernels compute wrong"
        )
    engine.scheduler.totals.reset()  # they count requests
    logger.info(
        "self-test passed in %.2f s: tokens %s",
        time.monotonic() - began,
        [row.token_id for row in decoded],
    )


def _run(engine: Engine, prompt: list[int], num_tokens: int) -> list[TokenLogprob]:
    """Greedy tokens, each with the likeliest in its place."""
    seq = Sequence(
        seq_id="self-test",
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        sampling=SamplingParams(
            max_tokens=num_tokens, temperature=0.0, seed=0, ignore_eos=True, logprobs=NUM_TOP
        ),
        group_key=bytes(GROUP_KEY_BYTES),
    )
    engine.scheduler.add(seq)
    rows: list[TokenLogprob] = []
    engine.cores.want()
    try:
        while len(rows) < num_tokens:
            for output in engine.step():
                if output.error is not None:
                    raise SelfTestFailed(f"the model gave no usable output: {output.error}")
                if output.logprobs is not None:
                    rows += output.logprobs.rows(output.token_ids)
    finally:
        engine.scheduler.release(seq.seq_id)
        engine.cores.lend()
    return rows
