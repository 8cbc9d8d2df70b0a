"""Shows what a running process is doing: SIGUSR1 makes it write every stack to standard error.

    kill -USR1 PID:   task 'connection to 10.0.0.7:50061' waits here
                        File "router/connection.py", line 93, in run
                        ...
                      then every thread, by faulthandler, also while the event loop hangs

Only places are written, no values: prompts stay out of the log.
"""

import asyncio
import faulthandler
import signal
import sys
import traceback
from collections.abc import Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

# Of what can be awaited: its own frame, and what it awaits in turn.
_NAMES = {
    CoroutineType: ("cr_frame", "cr_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
}


def show_stacks_on_signal() -> None:
    """From now on, for the running event loop."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _write_tasks)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)


def stack_of(task: "asyncio.Task[Any]") -> list[str]:
    """Lines of a traceback, from the task's coroutine down to what it waits for."""
    places = ((frame, frame.f_lineno) for frame in _frames(task.get_coro()))
    return traceback.StackSummary.extract(iter(places)).format()


def _write_tasks() -> None:
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        sys.stderr.write(f"task {task.get_name()!r} waits here\n{''.join(stack_of(task))}")
    sys.stderr.flush()


def _frames(awaited: Any) -> Iterator[FrameType]:
    """A suspended task knows its outermost frame only; the others are what that one awaits."""
    while (names := _NAMES.get(type(awaited))) is not None:
        frame, inner = names
        if (found := getattr(awaited, frame)) is not None:
            yield found
        awaited = getattr(awaited, inner)
