"""The kernels compile for GPUs that are not here, without spills and within shared memory.

A subprocess, because this one runs the kernels in the interpreter, which has no machine code.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.kernels.gpu.binary import MAX_SHARED_BYTES, Binary

pytestmark = pytest.mark.timeout(240)  # a compiler needs its seconds, more on a busy machine


def compile_table(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "octavo.kernels.compile_table", *arguments],
        env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


ATTENTION = {"decode_attention", "prefill_attention", "shared_attention"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a step of an 8B model in bfloat16 launches, and what differs of it over an fp8 cache."""
    path: Path = tmp_path_factory.mktemp("table") / "rows.json"
    main = "bfloat16 D 128, (group 4|window 0|norm)|bfloat16 N 4096, add"
    fp8 = "(decode|prefill).*fp8 D 128, group 4, block 16, window 0(, split)?$|fp8 D 128, norm"
    result = compile_table("--match", f"{main}|{fp8}", "--json", str(path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 with problems" in result.stdout
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def of_arch(rows: list[dict[str, Any]], arch: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["binary"]["arch"] == arch]


def test_main_variants_compile_for_every_target_without_spills(rows: list[dict[str, Any]]) -> None:
    every = ATTENTION | {"merge_partials", "merge_splits", "rms_norm", "rotary_store"}
    for arch, limit in MAX_SHARED_BYTES.items():
        kernels = {row["kernel"] for row in of_arch(rows, arch)}
        # sm_89 is sm_80 but for fp8.
        assert kernels == every - ({"rms_norm", "shared_attention"} if arch == "sm_89" else set())
        for row in of_arch(rows, arch):
            assert row["binary"]["num_registers"] > 0, row
            assert row["binary"]["num_spilled"] == 0, row
            assert row["binary"]["shared_bytes"] <= limit, row


def test_attention_uses_tensor_cores_and_asynchronous_copies(rows: list[dict[str, Any]]) -> None:
    attention = [row for row in rows if row["kernel"] in ATTENTION]
    # Prefill, decode of whole and of begun sequences, small and large groups; three targets. Decode
    # and prefill over fp8; two targets.
    assert len(attention) == 5 * 3 + 2 * 2
    for row in attention:
        assert row["binary"]["num_mma"] > 0, row
        if row["binary"]["arch"] != "gfx942":
            assert row["binary"]["num_async_copies"] > 0, row


def test_prefill_uses_the_warp_group_products_of_hopper(rows: list[dict[str, Any]]) -> None:
    for row in of_arch(rows, "sm_90"):
        if row["kernel"] == "prefill_attention":
            assert row["binary"]["num_wgmma"] > 0, row


def test_two_programs_of_decode_attention_fit_a_core(rows: list[dict[str, Any]]) -> None:
    """One waits for memory while the other computes."""
    for row in rows:
        if row["kernel"] == "decode_attention" and row["binary"]["arch"] in ("sm_89", "sm_90"):
            assert row["programs_per_core"] >= 2, row


def test_sm_80_tiles_fit_its_smaller_relatives(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["binary"]["arch"] == "sm_80":
            assert row["binary"]["shared_bytes"] <= 99 * 1024, row


def test_a_spill_or_too_much_shared_memory_is_a_problem() -> None:
    def binary(num_spilled: int, shared_bytes: int) -> Binary:
        return Binary(
            "gfx942", num_registers=128, num_scalar_registers=40, num_spilled=num_spilled,
            shared_bytes=shared_bytes, num_mma=1, num_wgmma=0, num_async_copies=0, num_warps=4,
        )  # fmt: skip

    assert binary(0, 65_536).problems == []
    assert binary(4, 65_536).problems == ["spills 4"]
    assert binary(0, 65_537).problems == ["shared memory 65537 > 65536"]


def test_programs_per_core_end_at_the_scarcest_resource() -> None:
    def programs(num_registers: int, shared_bytes: int) -> int:
        return Binary(
            "sm_90", num_registers, num_scalar_registers=0, num_spilled=0,
            shared_bytes=shared_bytes, num_mma=1, num_wgmma=0, num_async_copies=1, num_warps=4,
        ).programs_per_core  # fmt: skip

    assert programs(32, 0) == 16  # 64 warps
    assert programs(128, 0) == 4
    assert programs(128, 100 * 1024) == 2


def test_the_table_refuses_the_interpreter() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "octavo.kernels.compile_table"],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert result.returncode == 2 and "TRITON_INTERPRET" in result.stderr
