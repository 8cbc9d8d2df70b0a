"""One model, one pool, one step at a time: schedule, execute, commit."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from octavo.checkpoint.config import ModelConfig
from octavo.engine.adapters import Adapters, no_adapter
from octavo.engine.choice import Choice
from octavo.engine.cores import AnyCore, Cores
from octavo.engine.kv_cache import KVCache, KVLayout
from octavo.engine.load import Counters
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence, SequenceOutput
from octavo.engine.step_log import StepLog, is_logged
from octavo.engine.step_plan import StepPlan
from octavo.prompt_limits import check_prompt


class Runner(Protocol):
    """Computes a plan: a token for each of plan.sampled, and plan.prompt_scores."""

    def execute(self, plan: StepPlan) -> list[Choice]: ...


class Engine:
    """Runs sequences to their end; used by one thread, `check` by any."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        kv_cache: KVCache,
        model_config: ModelConfig,
        cores: Cores | None = None,
        *,
        adapters: Adapters | None = None,
    ) -> None:
        self.scheduler = scheduler
        scheduler.copy_block = kv_cache.copy_block
        self.runner = runner
        self.kv_cache = kv_cache
        self.model_config = model_config
        self.cores = cores or AnyCore()
        self.adapters = adapters or Adapters(no_adapter, 0)
        self.did_advance = True  # whether the last step changed anything

    @property
    def layout(self) -> KVLayout:
        return self.kv_cache.layout

    @property
    def max_model_len(self) -> int:
        return self.scheduler.limits.max_model_len

    def check(self, seq: Sequence) -> None:
        """Raise ValueError, naming field and limit, if the sequence cannot be run here."""
        check_prompt(seq.token_ids, self.model_config.vocab_size, self.max_model_len)
        seq.sampling.check_vocabulary(self.model_config.vocab_size, seq.eos_token_ids)
        if seq.sampling.bad_words:
            raise ValueError("bad_words are texts; a tokenizer makes bad_words_ids of them")
        if (seq.sampling.constraint is None) != (seq.grammar is None):
            raise ValueError("a constraint in sampling comes with its compiled grammar")
        self.scheduler.check(seq)

    def step(
        self, on_scheduled: Callable[[list[SequenceOutput]], None] | None = None
    ) -> list[SequenceOutput]:
        """Compute one step.

        Args:
            on_scheduled: told at once what is known before the model runs (who was admitted, first
                tokens that were pulled), if anything; without it that comes with the rest.
        """
        log = StepLog() if is_logged() else None
        plan = self.scheduler.schedule()
        self.kv_cache.use(self.scheduler.pool.num_used)
        early = self.scheduler.drain_outputs() if on_scheduled is not None else []
        if early and on_scheduled is not None:
            on_scheduled(early)
        began = time.perf_counter()
        choices = self.runner.execute(plan)
        plan.seconds = time.perf_counter() - began
        if log is not None:
            log.planned(plan)
        outputs = self.scheduler.commit(plan, choices)
        if log is not None:
            log.ended(plan)
        self.did_advance = plan.num_seqs > 0 or bool(early or outputs)
        return outputs

    def counters(self) -> Counters:
        """A snapshot."""
        cache = self.scheduler.prefix_cache
        return replace(
            self.scheduler.totals,
            blocks_cached=cache.num_stored,
            key_collisions=cache.num_collisions,
        )
