"""A recorded step: which memory it uses, what makes it refuse itself, and that it runs again."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from octavo.kernels.cpu.arena import Arena
from octavo.kernels.cpu.ops import add_rms_norm, rms_norm, silu_mul
from octavo.kernels.cpu.program import Program
from octavo.kernels.cpu.recording import Recording
from octavo.kernels.cpu.team import HelperCore, Team, mailbox

ROWS = 64


def test_a_block_is_used_again_once_no_view_of_it_is_left() -> None:
    arena = Arena()
    first = arena.empty((3, 5), torch.bfloat16)
    address, view = first.data_ptr(), first.view(5, 3)[1:]
    assert address % 64 == 0
    del first
    second = arena.empty((3, 5), torch.bfloat16)
    assert second.data_ptr() != address
    del view
    third = arena.empty((8,), torch.float32)
    assert third.data_ptr() == address
    lasting = arena.lasting(third)
    del third
    fourth = arena.empty((8,), torch.float32)
    fourth.fill_(2.5)
    assert fourth.data_ptr() == address and lasting.tolist() == [2.5] * 8


def test_a_lasting_tensor_keeps_its_memory() -> None:
    arena = Arena()
    lasting = arena.lasting(arena.empty((1000,), torch.float32).fill_(1.5))
    blocks = [weakref.ref(block.room) for found in arena._by_size.values() for block in found]
    del arena
    gc.collect()
    assert lasting.tolist() == [1.5] * 1000
    assert [reference() is None for reference in blocks] == [False]
    del lasting
    assert [reference() for reference in blocks] == [None]


def test_a_tensor_of_no_elements_has_a_place_too() -> None:
    assert Arena().empty((0, 8), torch.float32).shape == (0, 8)


@pytest.mark.parametrize("num_helpers", [0, 1])
def test_noted_calls_run_again_on_other_values(num_helpers: int) -> None:
    x, residual, weight = torch.randn(ROWS, 64), torch.randn(ROWS, 64), torch.randn(64)
    arena, team = Arena(), Team([HelperCore()] * num_helpers)

    def step(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        normed, _ = add_rms_norm(rms_norm(x, weight, 1e-5), residual, weight, 1e-5)
        return silu_mul(normed)

    inputs, sums = x.clone(), residual.clone()
    with Recording(arena) as recording:
        result = arena.lasting(step(inputs, sums))
    assert recording.refusal is None and len(recording.calls) == 3
    program = Program(recording.calls)
    for _ in range(3):
        inputs.copy_(x.normal_())
        sums.copy_(residual.normal_())
        expected = step(x, residual)
        with team.at_work():
            program.replay(1)
        assert torch.equal(result, expected)
    team.close()


@pytest.mark.parametrize(
    "operator",
    [
        lambda x: x + 1,
        lambda x: torch.empty(4),
        lambda x: x.bfloat16(),
        lambda x: x.T.contiguous(),
        lambda x: x.T.reshape(16),
        lambda x: x.sum().item(),
        lambda x: x[torch.tensor([0])],
        lambda x: x.zero_(),
    ],
)
def test_operators_that_compute_make_a_recording_refuse_itself(operator) -> None:  # type: ignore[no-untyped-def]
    x = torch.ones(4, 4)
    with torch.inference_mode(), Recording(Arena()) as recording:
        operator(x)
    assert recording.refusal is not None and "kernel" in recording.refusal


def test_a_launcher_that_hands_out_kernels_itself_makes_a_recording_refuse_itself() -> None:
    with Recording(Arena()) as recording:
        mailbox()
    assert recording.refusal == "a kernel is handed out without run"


def test_recording_imports_no_compiler_of_torch() -> None:
    code = """
import sys, torch
from octavo.kernels.cpu.arena import Arena
from octavo.kernels.cpu.recording import Recording, empty
with torch.inference_mode(), Recording(Arena()):
    empty((2, 8), torch.bfloat16).view(4, 4)[1:] + 1
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_views_are_no_reason_to_refuse() -> None:
    x = torch.ones(4, 12)
    with torch.inference_mode(), Recording(Arena()) as recording:
        heads = x.view(4, -1, 3)
        torch.split(heads, [2, 1, 1], dim=1)
        heads[1:].flatten(1)
        x[:, 2:].unsqueeze(0)
        x.contiguous().float().reshape(48)
    assert recording.refusal is None


def test_nothing_is_noted_outside_of_a_recording() -> None:
    recording = Recording(Arena())
    with pytest.raises(ZeroDivisionError), recording:
        raise ZeroDivisionError
    rms_norm(torch.ones(2, 16), torch.ones(16), 1e-5)
    assert recording.calls == []
