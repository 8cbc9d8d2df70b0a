"""What a thread's kernel calls are noted in, and where kernels get the memory of their results.

    with Recording(arena) as recording:          run(kernel, args, ...)  --> recording.calls
        logits = model.compute(step, kv)         empty(shape, dtype)     --> a block of the arena

Noted calls may be made again later on other values in the same memory, if they are all there was:
an operator of torch that is not a mere view computes or allocates where no list of kernels would,
so it makes the recording refuse itself. Whatever runs inside computes its results as ever.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.kernels.cpu.arena import Arena


class Code(Protocol):
    """A kernel's (see team.py)."""

    @property
    def address(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `team.run`; its addresses are those of the arena and of lasting tensors."""

    kernel: Code
    args: tuple[int, ...]
    num_items: int
    grain: int
    per_column: bool  # whether grain is for tables of one column


class Recording(TorchDispatchMode):
    """Notes the calls of this thread inside its block; a thread has one at a time."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.arena = arena
        self.calls: list[Call] = []
        self.refusal: str | None = None  # why the calls are not all there was

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled by torch, whose compiler would be imported for its exclusion."""
        return False

    def __enter__(self) -> Self:
        assert _here.recording is None, "this thread is recorded already"
        _here.recording = self
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _here.recording = None
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not (func.is_view and _lies_in(result, args[0])):
            self.refuse(f"{func} is no kernel of the team")
        return result

    def refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason


def _lies_in(result: Any, source: torch.Tensor) -> bool:
    """Whether a view operator gave views: some, such as `to`, copy where a view would not do."""
    views = result if isinstance(result, (list, tuple)) else [result]
    memory = source.untyped_storage().data_ptr()
    return all(view.untyped_storage().data_ptr() == memory for view in views)


class _Here(threading.local):
    recording: Recording | None = None


_here = _Here()


def note(kernel: Code, args: tuple[int, ...], num_items: int, grain: int, per_column: bool) -> None:
    """Add a call to this thread's recording, if there is one."""
    recording = _here.recording
    if recording is not None:
        recording.calls.append(Call(kernel, args, num_items, grain, per_column))


def refuse(reason: str) -> None:
    """Say that something happens that no list of calls holds."""
    if _here.recording is not None:
        _here.recording.refuse(reason)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory for the result of a kernel, with anything in it: what each launcher uses."""
    recording = _here.recording
    if recording is None:
        return torch.empty(shape, dtype=dtype)
    return recording.arena.empty(shape, dtype)
