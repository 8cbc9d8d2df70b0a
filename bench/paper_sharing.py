"""KV blocks saved by sharing (the paper's Figure 15): several samples, and beams, of one prompt.

Samples diverge with their first token, so that scheduler and pool tell it all. Which beams go on is
the model's choice: they are searched with one, over prompts of a real text.
"""

from pathlib import Path

import numpy as np

from octavo import LLM
from octavo.engine.block_pool import BlockPool
from octavo.engine.limits import Limits
from octavo.engine.load import Counters
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence
from octavo.sampling_params import BeamSearch, SamplingParams
from paper_allocator import GROUP, MAX_LENGTH, NUM_SLOTS, Lengths

TEXT = Path(__file__).parent / "texts" / "harbour.txt"


def saved(before: Counters, after: Counters, block_size: int) -> float:
    """Blocks that tables share over all blocks in tables, between two counts."""
    shared = after.shared_block_steps - before.shared_block_steps
    held = (after.allocated_slot_steps - before.allocated_slot_steps) / block_size
    return shared / (shared + held)


def saved_by_samples(lengths: Lengths, num_samples: int, block_size: int = 16) -> float:
    """When every prompt gets so many outputs."""
    pool = BlockPool(NUM_SLOTS // block_size)
    limits = Limits(block_size, 512, 8192, MAX_LENGTH)
    scheduler = Scheduler(pool, PrefixCache(pool, block_size), limits)
    rng = np.random.default_rng(13)
    for index, (num_prompt, num_output) in enumerate(lengths):
        sampling = SamplingParams(max_tokens=num_output, temperature=0.0, n=num_samples)
        prompt = list(rng.bytes(num_prompt))
        scheduler.add(Sequence(str(index), prompt, num_prompt, sampling, GROUP))
    next_token = 1_000
    while scheduler.has_work:
        plan = scheduler.schedule()
        scheduler.commit(plan, list(range(next_token, next_token + len(plan.sampled))))
        next_token += len(plan.sampled)
    return saved(Counters(), scheduler.totals, block_size)


def saved_by_beams(llm: LLM, lengths: Lengths, width: int) -> float:
    """When every prompt is continued by a beam search."""
    text = llm.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    prompts, params, start = [], [], 0
    for num_prompt, num_output in lengths:
        start = (start + num_prompt) % (len(text) - MAX_LENGTH)
        prompts.append(text[start : start + num_prompt])
        beams = BeamSearch(width, early_stopping="never")
        params.append(SamplingParams(max_tokens=num_output, beam_search=beams, ignore_eos=True))
    before = llm.counters()
    llm.generate(prompts, params, use_tqdm=False)
    return saved(before, llm.counters(), llm.engine.layout.block_size)
