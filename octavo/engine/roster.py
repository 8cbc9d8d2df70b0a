"""Every sequence of an engine by what it does, and the ways from one state to the next.

add --> waiting --run--> running --finish--> lingering, while its lease holds the blocks
             \\--fill--> filling --join--^  |
                preempted <--preempt-------+     release, at any point, gives all back
"""

from collections.abc import Iterator, Set
from itertools import chain

from octavo.engine.arrivals import Arrivals
from octavo.engine.block_pool import BlockPool
from octavo.engine.preemption import Preemption, choose_victims
from octavo.engine.samples import Samples
from octavo.engine.sequence import Sequence, Status
from octavo.engine.waiting_queue import WaitingQueue


class Roster:
    """Owns all sequences but the preempted, who are in `preemption.stopped`."""

    def __init__(self, pool: BlockPool, block_size: int, preemption: Preemption) -> None:
        # Every one not released or ended; those of an id are samples of one request.
        self.by_id: dict[str, list[Sequence]] = {}
        self.waiting = WaitingQueue()
        self.running = Arrivals()
        self.filling: dict[str, Sequence] = {}
        self.lingering: dict[str, Sequence] = {}  # finished
        self.pulls: dict[str, list[int]] = {}  # blocks that copies may still be writing
        self.samples = Samples(pool, block_size, self.by_id, self.running)
        self._pool = pool
        self._preemption = preemption

    @property
    def num_active(self) -> int:
        """Decode rows that are taken, those promised to samples of admitted requests included."""
        return len(self.running) + len(self.filling) + self.samples.num_promised

    def holders(self) -> Iterator[Sequence]:
        """All that hold blocks."""
        return chain(self.running, self.filling.values(), self.lingering.values())

    def add(self, seq: Sequence) -> None:
        """Put a sequence, and the siblings it asks for, in the queue.

        Raises:
            ValueError: one of its id is there.
        """
        if seq.seq_id in self.by_id or seq.seq_id in self.pulls:
            raise ValueError(f"sequence {seq.seq_id} is in the engine already")
        self.by_id[seq.seq_id] = [seq]
        self.waiting.append(seq)

    def run(self, seq: Sequence) -> None:
        """`seq` got blocks; it waits no more."""
        seq.status = Status.RUNNING
        self.samples.admit(seq)
        self.running.add(seq)

    def fill(self, seq: Sequence) -> None:
        """`seq` got blocks, which copies from another engine will fill."""
        seq.status = Status.FILLING
        self.samples.admit(seq)
        self.filling[seq.seq_id] = seq
        # Copies own their destination: these stay held until end_pull, whatever becomes of seq.
        self.pulls[seq.seq_id] = seq.block_ids[seq.num_registered_blocks :]
        self._pool.touch(self.pulls[seq.seq_id])

    def end_pull(self, seq_id: str) -> None:
        """No copy writes this sequence's blocks any more; no-op when unknown."""
        self._pool.free(self.pulls.pop(seq_id, []))

    def join(self, seq_id: str) -> Sequence | None:
        """Let a filling sequence run; None if it was released.

        Raises:
            ValueError: it fills no more.
        """
        if seq_id not in self.by_id:
            return None
        (seq,) = self.by_id[seq_id]
        if seq.status is not Status.FILLING:
            raise ValueError(f"sequence {seq_id} is {seq.status.name}, only FILLING ones join")
        del self.filling[seq_id]
        seq.status = Status.RUNNING
        self.running.add(seq)
        return seq

    def preempt(self) -> None:
        """Take the blocks of the latest of the running."""
        victims = choose_victims(self.running)
        for victim in victims:
            self.running.remove(victim)
            self.samples.forget(victim)
        if victims[0].beams is not None:
            victims = self.samples.restart_search(victims)
        self._preemption.stop(victims)

    def finish(self, seq: Sequence) -> None:
        """A running sequence has ended by itself."""
        self.running.remove(seq)
        seq.status = Status.FINISHED
        if seq.is_leased:
            self.lingering[seq.seq_id] = seq
            return
        self._free(seq)
        left = self.by_id[seq.seq_id]
        left.remove(seq)
        if not left:
            del self.by_id[seq.seq_id]

    def release(self, seq_id: str) -> None:
        """Drop a request in any state and give its blocks back; no-op when unknown."""
        for seq in self.by_id.pop(seq_id, ()):
            self._drop(seq)

    def stop(self, seq_id: str, samples: Set[int]) -> None:
        """Drop these samples, of a request whose samples have their first tokens."""
        left = self.by_id.get(seq_id, [])
        for seq in list(left):
            if seq.sample_index in samples and not seq.num_siblings and seq.beams is None:
                left.remove(seq)
                self._drop(seq)
        if not left:
            self.by_id.pop(seq_id, None)

    def _drop(self, seq: Sequence) -> None:
        match seq.status:
            case Status.WAITING:
                self.waiting.remove(seq)
            case Status.FILLING:
                del self.filling[seq.seq_id]
            case Status.RUNNING:
                self.running.remove(seq)
            case Status.PREEMPTED:
                self._preemption.release(seq)
            case Status.FINISHED:
                del self.lingering[seq.seq_id]
        seq.status = Status.FINISHED
        self._free(seq)

    def _free(self, seq: Sequence) -> None:
        self.samples.forget(seq)
        self._pool.free(seq.take_blocks())
        self._pool.free(seq.retired_block_ids)
        seq.retired_block_ids = []
