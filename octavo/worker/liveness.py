"""Tells the health service when the engine stands still: its port would go on answering.

EngineLoop.load --work and no step for a minute--> "" NOT_SERVING --a step, or no work--> SERVING
"""

import asyncio
import time

from octavo.engine.loop import EngineLoop
from octavo.rpc.server import Server

# Routers have long turned away by then; whoever restarts the worker takes its cache, too.
STANDSTILL_S = 60.0


async def watch_engine(
    loop: EngineLoop, server: Server, standstill_s: float = STANDSTILL_S
) -> None:
    """Look at the steps now and then; never returns."""
    steps, stepped_at = loop.load.steps, time.monotonic()
    while True:
        await asyncio.sleep(standstill_s / 60)
        load, now = loop.load, time.monotonic()
        has_work = load.running_sequences + load.waiting_sequences > 0
        if load.steps != steps or not has_work:
            steps, stepped_at = load.steps, now
        await server.set_alive(now - stepped_at < standstill_s)
