"""Lets a test see, hold and disturb the copies into a decode worker's blocks."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.engine.kv_cache import KVCache


@dataclass(slots=True)
class HeldCopies:
    """Copies wait, once `after` of them are through, until `let_go`; the thread really blocks."""

    after: int = 0
    num_begun: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)
    _gate: threading.Event = field(default_factory=threading.Event)

    def install(self, kv_cache: KVCache) -> None:
        write, loop = kv_cache.write_block, asyncio.get_running_loop()

        def held_write(block_id: int, buffer: bytes | bytearray | memoryview) -> None:
            self.num_begun += 1
            if self.num_begun > self.after and not self._gate.is_set():
                loop.call_soon_threadsafe(self.held.set)
                self._gate.wait(timeout=10)  # a failed test ends all the same
            write(block_id, buffer)

        kv_cache.write_block = held_write  # type: ignore[method-assign]

    def let_go(self) -> None:
        self._gate.set()


def before_each_copy(kv_cache: KVCache, action: Callable[[], None]) -> None:
    """Run `action` on the copy thread just before a block is written."""
    write = kv_cache.write_block

    def watched_write(block_id: int, buffer: bytes | bytearray | memoryview) -> None:
        action()
        write(block_id, buffer)

    kv_cache.write_block = watched_write  # type: ignore[method-assign]
