"""Grammars for a service: off the event loop, under limits, each text once.

    await of(constraint) --> cache, else: thread --> Checker (a child process) [--> Compiler]

Neither the event loop nor the engine thread waits for what a caller sends. Routers only check.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from octavo.grammar.checker import Checker
from octavo.grammar.compiler import Compiler
from octavo.grammar.constraint import Constraint
from octavo.grammar.counters import GrammarCounters
from octavo.grammar.matcher import Grammar
from octavo.grammar.vocabulary import NoGrammars, Vocabulary

MAX_WAITING = 16
MAX_KEPT = 256
MAX_KEPT_BYTES = 4 << 20  # of text; what is compiled of it is larger

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no grammar; an exception would gather a traceback each time it is raised."""

    reason: str


class TooManyGrammars(Exception):
    """So many wait to be compiled that another one would wait too long."""


class Grammars(Generic[Result]):
    """What was made of the constraints used last; used by the event loop's thread."""

    def __init__(self, thread: ThreadPoolExecutor, work: Callable[[Constraint], Result]) -> None:
        """work: runs on the thread; raises ValueError for a constraint that is no good."""
        self.counters = GrammarCounters()
        self._thread = thread
        self._work = work
        self._kept: OrderedDict[Constraint, Result | Refusal] = OrderedDict()
        self._num_kept_bytes = 0
        self._awaited: dict[Constraint, asyncio.Future[Result | Refusal]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def of(self, constraint: Constraint) -> Result:
        """The constraint's grammar.

        Raises:
            ValueError: it cannot be compiled within the limits; the message begins with the field.
            TooManyGrammars: too many others come first.
        """
        if constraint in self._kept:
            self.counters.reused += 1
            self._kept.move_to_end(constraint)
            found = self._kept[constraint]
        else:
            found = await asyncio.shield(self._begin(constraint))  # others may wait for it too
        if isinstance(found, Refusal):
            raise ValueError(found.reason)
        return found

    def _begin(self, constraint: Constraint) -> "asyncio.Future[Result | Refusal]":
        future = self._awaited.get(constraint)
        if future is None:
            if len(self._awaited) >= MAX_WAITING:
                raise TooManyGrammars(f"{len(self._awaited)} grammars wait to be compiled")
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._thread, self._try, constraint)
            self._awaited[constraint] = future
            future.add_done_callback(partial(self._keep, constraint))
        return future

    def _try(self, constraint: Constraint) -> Result | Refusal:
        began = time.monotonic()
        try:
            return self._work(constraint)
        except ValueError as error:
            return Refusal(str(error))
        finally:
            self.counters.check_s.add(time.monotonic() - began)

    def _keep(self, constraint: Constraint, future: "asyncio.Future[Result | Refusal]") -> None:
        del self._awaited[constraint]
        if future.cancelled() or future.exception() is not None:
            return  # whoever waits for it is told
        found = self._kept[constraint] = future.result()
        if isinstance(found, Refusal):
            self.counters.refused += 1
        else:
            self.counters.accepted += 1
        self._num_kept_bytes += len(constraint.text)
        while len(self._kept) > MAX_KEPT or self._num_kept_bytes > MAX_KEPT_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            self._num_kept_bytes -= len(oldest.text)


@asynccontextmanager
async def checked_grammars(
    special_tokens: Mapping[int, str], eos_token_ids: Sequence[int]
) -> AsyncIterator[Grammars[str]]:
    """For a router, which needs to know only whether there is a grammar."""
    checker = Checker(special_tokens, eos_token_ids)
    async with _thread(checker) as thread:
        yield Grammars(thread, checker.source_of)


class CompiledGrammars:
    """A grammar of its own for every request, of what is known to compile.

    Copies of a grammar share the library's lexer, and its limits: one sequence that reaches them
    ends all others that share it.
    """

    def __init__(
        self, thread: ThreadPoolExecutor, checked: Grammars[str], compiler: Compiler
    ) -> None:
        self._thread = thread
        self._checked = checked
        self._compiler = compiler

    async def of(self, constraint: Constraint) -> Grammar:
        """As `Grammars.of`, and compiled, which takes a millisecond or some."""
        source = await self._checked.of(constraint)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._compile, constraint, source)

    @property
    def counters(self) -> GrammarCounters:
        return self._checked.counters

    def _compile(self, constraint: Constraint, source: str) -> Grammar:
        began = time.monotonic()
        grammar = self._compiler.compile(constraint, source)
        self.counters.compile_s.add(time.monotonic() - began)
        return grammar


@asynccontextmanager
async def compiled_grammars(vocabulary: Vocabulary) -> AsyncIterator[CompiledGrammars]:
    """For a worker; made before it serves, since that holds up the whole process."""
    checker = Checker(vocabulary.special_tokens, vocabulary.eos_token_ids)
    compiler = Compiler(vocabulary)
    with suppress(NoGrammars):  # whoever asks for one is told
        compiler.prepare()
    async with _thread(checker) as thread:
        checked = Grammars(thread, checker.source_of)
        yield CompiledGrammars(thread, checked, compiler)


@asynccontextmanager
async def _thread(checker: Checker) -> AsyncIterator[ThreadPoolExecutor]:
    thread = ThreadPoolExecutor(1, "grammar")
    try:
        yield thread
    finally:
        await asyncio.to_thread(thread.shutdown, cancel_futures=True)
        checker.close()
