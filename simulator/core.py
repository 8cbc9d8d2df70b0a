"""A core (or a GPU) that its jobs share equally: n jobs at once each run at 1/n of its speed."""

from dataclasses import dataclass

from simulator.clock import Action, Clock

# Two jobs end together if less than this much work lies between them.
SAME_S = 1e-12


@dataclass(slots=True, eq=False)
class _Job:
    remaining_s: float
    done: Action


class Core:
    """Runs jobs; `busy_s` sums the time in which there was one."""

    def __init__(self, clock: Clock) -> None:
        self.busy_s = 0.0
        self._clock = clock
        self._jobs: list[_Job] = []
        self._since = 0.0  # the jobs' remaining times hold for this moment
        self._version = 0  # of the set of jobs; an older timer is void

    @property
    def num_jobs(self) -> int:
        return len(self._jobs)

    def run(self, work_s: float, done: Action) -> None:
        """Do `work_s` of work, then call `done`."""
        self._advance()
        self._jobs.append(_Job(work_s, done))
        self._rearm()

    def _advance(self) -> None:
        elapsed_s = self._clock.now - self._since
        self._since = self._clock.now
        if self._jobs:
            self.busy_s += elapsed_s
            share_s = elapsed_s / len(self._jobs)
            for job in self._jobs:
                job.remaining_s -= share_s

    def _rearm(self) -> None:
        self._version += 1
        if self._jobs:
            version = self._version
            shortest = min(job.remaining_s for job in self._jobs)
            delay_s = max(shortest, 0.0) * len(self._jobs)
            self._clock.after(delay_s, lambda: self._expire(version))

    def _expire(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        shortest = min(job.remaining_s for job in self._jobs)
        ended = [job for job in self._jobs if job.remaining_s <= max(shortest, 0.0) + SAME_S]
        self._jobs = [job for job in self._jobs if job not in ended]
        self._rearm()
        for job in ended:
            job.done()


def least_busy(cores: list[Core]) -> Core:
    """Where the system would put a process that is bound to none of these cores."""
    return min(cores, key=lambda core: core.num_jobs)
