"""The live screen: ask, draw, wait for the interval, a key or another size, again.

A router that goes away is said to be away, over what it told last, and asked until it is back.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import grpc
from rich.console import Console, RenderableType
from rich.live import Live

from octavo.client.error import OctavoError
from octavo.top.history import History
from octavo.top.marks import ASCII, UNICODE, Glyphs, age
from octavo.top.screen import Canvas, draw
from octavo.top.snapshot import clean
from octavo.top.source import Source

try:
    import termios
    import tty
except ImportError:  # not every system has them; Ctrl-C is left
    termios = tty = None  # type: ignore[assignment]


class LiveScreen:
    """Until somebody presses q or Ctrl-C."""

    def __init__(self, source: Source, history: History, console: Console) -> None:
        self._source = source
        self._history = history
        self._console = console
        self._quit = asyncio.Event()
        self._redraw = asyncio.Event()
        self._lost_at: float | None = None  # time.monotonic() of the first call that failed
        self._why = ""

    async def run(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._quit.set)
        loop.add_signal_handler(signal.SIGWINCH, self._redraw.set)
        asking = asyncio.create_task(self._ask(interval_s))
        quitting = asyncio.create_task(self._quit.wait())
        screen = Live(console=self._console, screen=True, auto_refresh=False)
        with _keys(self._on_key), screen as live:
            try:
                while not self._quit.is_set():
                    live.update(self._picture(), refresh=True)
                    redrawing = asyncio.create_task(self._redraw.wait())
                    await asyncio.wait(
                        {asking, quitting, redrawing}, return_when=asyncio.FIRST_COMPLETED
                    )
                    redrawing.cancel()
                    self._redraw.clear()
                    if asking.done():
                        asking.result()
            finally:
                asking.cancel()
                quitting.cancel()

    async def _ask(self, interval_s: float) -> None:
        """Never ends; each answer, or none, is drawn."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                self._history.add(await self._source.snapshot())
                self._lost_at = None
            except OctavoError as error:
                self._lost_at = self._lost_at or time.monotonic()
                self._why = _reason(error)
            self._redraw.set()

    def _picture(self) -> RenderableType:
        width, height = self._console.size
        trouble = ""
        if self._lost_at is not None:
            lost = age(time.monotonic() - self._lost_at)
            trouble = f"no answer for {lost} ({self._why}); asking again, q quits"
        canvas = Canvas(width, height, glyphs_of(self._console))
        return draw(self._history, canvas, self._source.address, trouble)

    def _on_key(self) -> None:
        pressed = os.read(sys.stdin.fileno(), 64)
        if not pressed or b"q" in pressed.lower():  # nothing: the terminal is gone
            self._quit.set()


def glyphs_of(console: Console) -> Glyphs:
    return ASCII if console.options.ascii_only else UNICODE


def _reason(error: OctavoError) -> str:
    if error.code is grpc.StatusCode.UNAVAILABLE and not error.is_from_service:
        return "nothing listens there"
    return clean(error.message) or error.code.name


@contextlib.contextmanager
def _keys(on_key: Callable[[], None]) -> Iterator[None]:
    """Tell single keys, unechoed, while the block lasts; without a terminal there are none."""
    if termios is None or not sys.stdin.isatty():
        yield
        return
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    loop.add_reader(file, on_key)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
