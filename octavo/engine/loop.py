"""Runs the engine on its own thread and hands its outputs back to asyncio.

    servicer --lease, call, post--> inbox --> [engine thread: step, step, ...]
        ^                                                  |
        +------- stream (one queue per sequence) <---------+--> load, cache changes

Only the engine thread touches the scheduler, the block pool and the device.
"""

import asyncio
import gc
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

from octavo.block_key import BlockKey
from octavo.engine.engine import Engine
from octavo.engine.errors import EngineDied
from octavo.engine.load import Load
from octavo.engine.sequence import Sequence, SequenceOutput
from octavo.engine.stream import SequenceStream
from octavo.engine.token_gaps import TokenGaps

Result = TypeVar("Result")
Command = Callable[[], None]
OnCacheChange = Callable[[list[BlockKey], list[BlockKey]], None]

# While there is work that no step can advance (blocks are held by others), the thread shows that
# it lives by an empty step this often.
IDLE_STEP_S = 1.0
# While fewer sequences run than fill, a step waits so long for them at most: one of few takes half
# the time of one of many, and the core helps with the others' prompts meanwhile.
JOIN_WAIT_S = 0.1
# A step that hangs must not keep the process from ending.
STOP_TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


class EngineLoop:
    """Owns the engine thread: `async with EngineLoop(engine) as loop`.

    Args:
        on_cache_change: told the block keys (stored, removed), on the event loop, after each step
            that changed any.
        token_gaps: counts the times between tokens; None costs nothing.
    """

    def __init__(
        self,
        engine: Engine,
        on_cache_change: OnCacheChange | None = None,
        token_gaps: TokenGaps | None = None,
    ) -> None:
        self.failed = asyncio.Event()
        self.load = engine.scheduler.load()
        self._engine = engine
        self._step_ended = 0.0  # time.monotonic()
        self._on_cache_change = on_cache_change
        self._token_gaps = token_gaps
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._streams: dict[str, SequenceStream] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        self._load_changed = asyncio.Event()
        self._death: EngineDied | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    async def __aenter__(self) -> Self:
        self._asyncio_loop = asyncio.get_running_loop()
        # A full collection over the libraries' objects would cost more than a step's scheduling.
        gc.freeze()
        self._thread.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("the engine's step did not end within %g s; left behind", STOP_TIMEOUT_S)
        gc.unfreeze()
        self._end_all(EngineDied("the engine loop was closed"))

    @asynccontextmanager
    async def lease(self, seq: Sequence) -> AsyncIterator[SequenceStream]:
        """Run `seq` and its siblings; their blocks are given back on exit, whatever happened.

        Raises:
            ValueError: it can never run, or its id is in use.
            EngineDied: the engine thread is gone.
        """
        self._raise_if_dead()
        self._engine.check(seq)
        if seq.seq_id in self._streams:
            raise ValueError(f"sequence {seq.seq_id} is in the engine already")
        stream = self._streams[seq.seq_id] = SequenceStream(seq.num_ends)
        self._inbox.put(partial(self._add, seq, stream))
        try:
            yield stream
        finally:
            del self._streams[seq.seq_id]
            self._inbox.put(partial(self._engine.scheduler.release, seq.seq_id))

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run `function` on the engine thread between two steps; returns or raises as it does."""
        self._raise_if_dead()
        future: asyncio.Future[Result] = self._asyncio_loop.create_future()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        self._inbox.put(partial(self._answer, function, future))
        return await future

    def post(self, function: Command) -> None:
        """Run `function` on the engine thread without waiting; if it raises, the engine dies."""
        self._inbox.put(function)

    async def load_change(self) -> Load:
        """Wait for the next load sample."""
        self._raise_if_dead()
        await self._load_changed.wait()
        self._raise_if_dead()
        return self.load

    def tell_load(self) -> None:
        """Wake everyone who waits for a change, and nobody who comes later."""
        waited_for, self._load_changed = self._load_changed, asyncio.Event()
        waited_for.set()

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise self._death

    def _run(self) -> None:
        cores = self._engine.cores
        try:
            cores.enter()
            can_advance = True
            while self._apply_inbox(can_advance):
                cores.want()
                outputs = self._engine.step(self._publish)
                can_advance = self._engine.did_advance
                self._publish(outputs)
                self._step_ended = time.monotonic()
        except Exception as error:
            logger.exception("the engine thread died")
            death = EngineDied(f"the engine thread died of {type(error).__name__}: {error}")
            self._asyncio_loop.call_soon_threadsafe(self._die, death)
        finally:
            cores.lend()

    def _apply_inbox(self, can_advance: bool) -> bool:
        """Apply everything queued, waiting for it while no step is worth making.

        False means stop.
        """
        scheduler = self._engine.scheduler
        command: Command | None
        while True:
            wait_s = self._held_back_s() if can_advance else IDLE_STEP_S
            try:
                if wait_s > 0 or not scheduler.has_work:
                    self._engine.cores.lend()
                if not scheduler.has_work:
                    command = self._inbox.get()
                else:
                    command = self._inbox.get(block=wait_s > 0, timeout=wait_s or None)
            except queue.Empty:
                return True
            if command is None:
                return False
            was_idle = not scheduler.has_work
            command()
            can_advance = True
            if was_idle or not scheduler.has_work:
                # An idle engine still tells what it holds; one that gets work, that it has some:
                # were its first step to hang, nobody could know otherwise.
                self._publish([])

    def _held_back_s(self) -> float:
        """For how long a step that could be made had better wait."""
        if not (self._engine.cores.lends and self._engine.scheduler.is_mostly_filling):
            return 0.0
        return max(0.0, self._step_ended + JOIN_WAIT_S - time.monotonic())

    def _add(self, seq: Sequence, stream: SequenceStream) -> None:
        try:
            self._engine.scheduler.add(seq)
        except ValueError as error:
            # An earlier sequence of this id is gone, and a copy still writes its blocks.
            self._asyncio_loop.call_soon_threadsafe(stream.fail, error)

    def _answer(self, function: Callable[[], Result], future: asyncio.Future[Result]) -> None:
        try:
            settle = partial(future.set_result, function())
        except Exception as error:
            # The caller's own mistake goes back to the caller; the engine goes on.
            settle = partial(future.set_exception, error)
        self._asyncio_loop.call_soon_threadsafe(_settle, future, settle)

    def _publish(self, outputs: list[SequenceOutput]) -> None:
        stored, removed = self._engine.scheduler.prefix_cache.drain_events()
        load = self._engine.scheduler.load()
        self._asyncio_loop.call_soon_threadsafe(self._deliver, outputs, load, stored, removed)

    def _deliver(
        self,
        outputs: list[SequenceOutput],
        load: Load,
        stored: list[BlockKey],
        removed: list[BlockKey],
    ) -> None:
        if outputs and self._token_gaps is not None:
            self._token_gaps.count(outputs, self._streams)
        for output in outputs:
            if stream := self._streams.get(output.seq_id):
                stream.put(output)
        if load != self.load:
            self.load = load
            self.tell_load()
        if self._on_cache_change is not None and (stored or removed):
            self._on_cache_change(stored, removed)

    def _die(self, death: EngineDied) -> None:
        self._end_all(death)
        self.failed.set()

    def _end_all(self, death: EngineDied) -> None:
        self._death = self._death or death
        for stream in self._streams.values():
            stream.fail(self._death)
        for future in self._calls:
            _settle(future, partial(future.set_exception, self._death))
        self.tell_load()


def _settle(future: asyncio.Future[Result], settle: Callable[[], None]) -> None:
    if not future.done():  # its caller was cancelled, or the engine died
        settle()
