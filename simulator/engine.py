"""One worker's engine on virtual time: EngineLoop's order of things around the real scheduler.

post --> inbox --> schedule --early outputs--> [step takes time] --> commit --outputs-->
"""

from collections.abc import Callable
from functools import partial
from itertools import count

from octavo.block_key import BlockKey
from octavo.engine.block_pool import BlockPool
from octavo.engine.limits import Limits
from octavo.engine.load import Load
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import SequenceOutput
from octavo.engine.step_plan import StepPlan
from simulator.clock import Action
from simulator.core import Core
from simulator.cost import StepCost

Deliver = Callable[[list[SequenceOutput]], None]
Publish = Callable[[Load, list[BlockKey], list[BlockKey]], None]
MAX_TOKEN_ID = 2**32


class SimulatedEngine:
    """Steps while there is work; what a token is does not matter, only that it is new."""

    def __init__(
        self, core: Core, cost: StepCost, limits: Limits, num_blocks: int, first_token: int
    ) -> None:
        pool = BlockPool(num_blocks)
        self.scheduler = Scheduler(pool, PrefixCache(pool, limits.block_size), limits)
        self.core = core
        self.step_s = 0.0  # sum over steps of their work
        self.deliver: Deliver = _ignore
        self.publish: Publish = _ignore_change
        self._cost = cost
        self._inbox: list[Action] = []
        self._is_stepping = False
        self._tokens = count(first_token)

    def post(self, command: Action) -> None:
        """Apply `command` between two steps, at once if there is none."""
        self._inbox.append(command)
        if not self._is_stepping:
            self._step()

    def _step(self) -> None:
        self._is_stepping = True
        can_advance = True
        while can_advance:
            inbox, self._inbox = self._inbox, []
            for command in inbox:
                command()
            if not self.scheduler.has_work:
                self._tell([])
                can_advance = bool(self._inbox)
                continue
            plan = self.scheduler.schedule()
            early = self.scheduler.drain_outputs()
            if early:
                self._tell(early)
            if plan.num_seqs:
                work_s = self._cost.seconds(plan)
                self.step_s += work_s
                self.core.run(work_s, partial(self._end, plan))
                return
            outputs = self.scheduler.commit(plan, [])
            self._tell(outputs)
            can_advance = bool(early or outputs or self._inbox)
        self._is_stepping = False

    def _end(self, plan: StepPlan) -> None:
        token_ids = [next(self._tokens) % MAX_TOKEN_ID for _ in plan.sampled]
        self._tell(self.scheduler.commit(plan, token_ids))
        self._step()

    def _tell(self, outputs: list[SequenceOutput]) -> None:
        stored, removed = self.scheduler.prefix_cache.drain_events()
        self.publish(self.scheduler.load(), stored, removed)
        if outputs:
            self.deliver(outputs)


def _ignore(outputs: list[SequenceOutput]) -> None:
    """Nobody listens."""


def _ignore_change(load: Load, stored: list[BlockKey], removed: list[BlockKey]) -> None:
    """Nobody listens."""
