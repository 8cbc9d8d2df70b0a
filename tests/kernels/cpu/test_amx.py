"""Tiles of the CPU's matrix unit against torch, from the thread that runs them."""

import pytest
import torch

from octavo.kernels.cpu import amx
from octavo.kernels.cpu.memory import unpacked
from octavo.kernels.cpu.team import HelperCore, Team, kernel, run

needs_bf16 = pytest.mark.skipif(not amx.HAS_AMX_BF16, reason="the CPU has no bfloat16 tiles")
needs_int8 = pytest.mark.skipif(not amx.HAS_AMX_INT8, reason="the CPU has no int8 tiles")


@kernel
def _bf16(args, first, last):
    """Item i: c[i] = a[i] x b[i], one tile each."""
    a, b, c = unpacked(args, 3)
    amx.configure()
    for i in range(first, last):
        amx.zero(0)
        amx.load(3, a + 1024 * i, 64)
        amx.load(7, b + 1024 * i, 64)
        amx.dot_bf16(0, 3, 7)
        amx.store(0, c + 1024 * i, 64)
    amx.release()


@kernel
def _int8(args, first, last):
    a, b, c, config = unpacked(args, 4)
    amx.configure_from(config)
    for i in range(first, last):
        amx.zero(1)
        amx.load(0, a + 1024 * i, 64)
        amx.load(2, b + 1024 * i, 64)
        amx.dot_int8(1, 0, 2)
        amx.store(1, c + 1024 * i, 64)
    amx.release()


@needs_bf16
def test_tiles_multiply_bfloat16_on_every_thread_of_a_team() -> None:
    a, b = torch.randn(64, 16, 32).bfloat16(), torch.randn(64, 32, 16).bfloat16()
    pairs = b.view(64, 16, 2, 16).transpose(2, 3).contiguous()
    c = torch.empty(64, 16, 16)
    team = Team([HelperCore()])
    try:
        with team.at_work():
            run(_bf16, (a.data_ptr(), pairs.data_ptr(), c.data_ptr()), 64, 1)
    finally:
        team.close()
    torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-5, rtol=1e-5)


@needs_int8
def test_tiles_multiply_signed_bytes_exactly() -> None:
    a = torch.randint(-128, 128, (3, 16, 64), dtype=torch.int8)
    b = torch.randint(-128, 128, (3, 64, 16), dtype=torch.int8)
    fours = b.view(3, 16, 4, 16).transpose(2, 3).contiguous()
    c = torch.empty(3, 16, 16, dtype=torch.int32)
    config = torch.zeros(64, dtype=torch.uint8)
    config[0] = 1
    config[16:32:2], config[48:56] = 64, 16
    run(_int8, tuple(t.data_ptr() for t in (a, fours, c, config)), 3, 1)
    assert torch.equal(c, a.int() @ b.int())


@needs_bf16
def test_tiles_and_onednn_do_not_disturb_each_other() -> None:
    a, b = torch.randn(16, 32).bfloat16(), torch.randn(32, 16).bfloat16()
    pairs = b.view(16, 2, 16).transpose(1, 2).contiguous()
    c = torch.empty(16, 16)
    left, right = torch.randn(256, 256).bfloat16(), torch.randn(256, 256).bfloat16()
    expected = left @ right
    for _ in range(3):
        run(_bf16, (a.data_ptr(), pairs.data_ptr(), c.data_ptr()), 1, 1)
        torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-5, rtol=1e-5)
        assert torch.equal(left @ right, expected)
