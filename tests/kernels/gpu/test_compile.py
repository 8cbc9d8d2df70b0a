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


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Attention at head_dim 128 in bfloat16, its merges, and one norm with residual."""
    path: Path = tmp_path_factory.mktemp("table") / "rows.json"
    match = "bfloat16 D 128, (group 4|window 0)|bfloat16 N 4096, add"
    result = compile_table("--match", match, "--json", str(path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 with problems" in result.stdout
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_main_variants_compile_for_every_target_without_spills(rows: list[dict[str, Any]]) -> None:
    attention = {"decode_attention", "prefill_attention", "shared_attention"}
    kernels = attention | {"merge_partials", "merge_splits", "rms_norm"}
    for arch, limit in MAX_SHARED_BYTES.items():
        of_arch = [row for row in rows if row["binary"]["arch"] == arch]
        assert {row["kernel"] for row in of_arch} == kernels
        for row in of_arch:
            assert row["binary"]["num_registers"] > 0, row
            assert row["binary"]["num_spilled"] == 0, row
            assert row["binary"]["shared_bytes"] <= limit, row


def test_attention_uses_tensor_cores_and_asynchronous_copies(rows: list[dict[str, Any]]) -> None:
    attention = [row for row in rows if row["kernel"].endswith("_attention")]
    # Prefill, decode of whole and of begun sequences, small and large groups; three targets.
    assert len(attention) == 5 * 3
    for row in attention:
        assert row["binary"]["num_mma"] > 0, row
        if row["binary"]["arch"] != "gfx942":
            assert row["binary"]["num_async_copies"] > 0, row


def test_sm_80_tiles_fit_its_smaller_relatives(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["binary"]["arch"] == "sm_80":
            assert row["binary"]["shared_bytes"] <= 99 * 1024, row


def test_a_spill_or_too_much_shared_memory_is_a_problem() -> None:
    def binary(num_spilled: int, shared_bytes: int) -> Binary:
        return Binary("gfx942", 128, 40, num_spilled, shared_bytes, 1, 0)

    assert binary(0, 65_536).problems == []
    assert binary(4, 65_536).problems == ["spills 4"]
    assert binary(0, 65_537).problems == ["shared memory 65537 > 65536"]


def test_the_table_refuses_the_interpreter() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "octavo.kernels.compile_table"],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert result.returncode == 2 and "TRITON_INTERPRET" in result.stderr
