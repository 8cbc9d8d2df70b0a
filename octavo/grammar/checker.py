"""Asks a process of its own whether a grammar can be compiled within the limits.

A hostile grammar may take for ever, all memory or the whole stack; then the child ends, and the
next grammar gets a new one.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.grammar.child import MEMORY_LIMIT_BYTES, TIME_LIMIT_S
from octavo.grammar.constraint import Constraint

ROOT = Path(__file__).parents[2]
END_TIMEOUT_S = 3.0


class Checker:
    """One child, started when it is first needed; used by one thread at a time."""

    def __init__(self, special_tokens: Mapping[int, str], eos_token_ids: Sequence[int]) -> None:
        """special_tokens: by id, every one of eos_token_ids among them."""
        self._has_end = bool(eos_token_ids)
        self._start = json.dumps(
            {"special_tokens": dict(special_tokens), "eos_token_ids": list(eos_token_ids)}
        )
        self._child: subprocess.Popen[str] | None = None

    def source_of(self, constraint: Constraint) -> str:
        """The constraint in the library's form, known to compile.

        Raises:
            ValueError: it does not, or not within the limits; the message begins with the field.
        """
        if not self._has_end:
            raise ValueError(f"{constraint.field} needs a model with an end-of-sequence token")
        answer = self._ask({"field": constraint.field, "text": constraint.text})
        if answer is None:
            raise ValueError(f"{constraint.field} is no usable grammar: {self._why_it_ended()}")
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["source"]

    def close(self) -> None:
        """End the child; harmless when there is none."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate(timeout=END_TIMEOUT_S)

    def _ask(self, question: dict[str, str]) -> dict[str, str] | None:
        """The child's answer; None if it ended."""
        child = self._child
        if child is None or child.poll() is not None:
            self.close()
            child = self._child = self._new_child()
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(question) + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            return None
        line = child.stdout.readline()
        answer: dict[str, str] | None = json.loads(line) if line else None
        return answer

    def _new_child(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "octavo.grammar.child"]
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # panics, of which the answer tells
            text=True,
        )
        assert child.stdin is not None
        child.stdin.write(self._start + "\n")
        return child

    def _why_it_ended(self) -> str:
        assert self._child is not None
        if self._child.wait(END_TIMEOUT_S) == -signal.SIGALRM:
            return f"compiling it takes more than {TIME_LIMIT_S:g} s"
        return f"compiling it takes more than {MEMORY_LIMIT_BYTES >> 20} MiB, or too deep a stack"
