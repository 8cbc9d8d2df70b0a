"""`octavo prefill-worker`: what cannot be had ends it with a reason, not with a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from checkpoints import tiny_llama


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said_with_what_to_do(tmp_path: Path) -> None:
    arguments = ["prefill-worker", f"--model={tiny_llama(tmp_path)}", "--device=cuda"]
    command = [sys.executable, "-m", "octavo.cli.app", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "torch finds no GPU" in done.stderr and "--device cpu" in done.stderr
    assert "Traceback" not in done.stderr
