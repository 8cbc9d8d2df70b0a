"""bench/gpu where there is no GPU: it says so, and its checks run in the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[3] / "bench" / "gpu"

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="`make bench-gpu` runs it here")


def bench(*arguments: str, interpreted: bool) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRITON_INTERPRET": "1" if interpreted else "0"}
    return subprocess.run(
        [sys.executable, str(BENCH), *arguments],
        env=environment, capture_output=True, text=True, timeout=110,
    )  # fmt: skip


def test_without_a_gpu_nothing_is_claimed() -> None:
    result = bench(interpreted=False)
    assert result.returncode == 2 and "nothing was measured" in result.stdout


def test_every_kernel_passes_its_check_in_the_interpreter(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = bench("--tiny", "--json", str(path), interpreted=True)
    assert result.returncode == 0, result.stdout + result.stderr
    cases = json.loads(path.read_text())["cases"]
    assert all(case["is_right"] for case in cases)
    assert len({case["kernel"] for case in cases}) == 10  # four of them over fp8, too
