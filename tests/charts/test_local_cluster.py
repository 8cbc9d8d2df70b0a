"""The rendered manifests run, every pod a process with its own address, root, user and files."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from charts.cluster import sandbox
from checkpoints import tiny_llama
from end_to_end.prompts import expected, prompt_of

TESTS = Path(__file__).parents[1]
USER = 10001
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def shared_folder() -> Iterator[Path]:
    """One that other users may read, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="octavo-cluster-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def cluster_arguments(shared_folder: Path) -> list[str]:
    """What every scenario takes: a tiny model, compiled kernels and questions."""
    if not sandbox.is_possible():
        pytest.skip("no namespaces or no overlay here: needs root on Linux")
    if TESTS.is_relative_to("/tmp"):
        pytest.fail("pods have a /tmp of their own: run this from a clone elsewhere")
    model = tiny_llama(shared_folder / "models" / "model")
    cache = shared_folder / "cache"
    compile_kernels = [sys.executable, "-m", "octavo.kernels.cpu", "float32"]
    subprocess.run(compile_kernels, cwd=TESTS.parent, check=True)
    own = Path(os.environ.get("OCTAVO_CACHE_DIR") or "~/.cache/octavo").expanduser() / "numba"
    if own.exists():  # a claim of compiled kernels, as a fleet would share one
        shutil.copytree(own, cache / "numba")
    subprocess.run(["chown", "-R", f"{USER}:{USER}", cache], check=True)
    subprocess.run(["chmod", "-R", "a+rX", model.parent], check=True)
    prompts = [prompt_of(length, seed="cluster") for length in (5, 40, 120, 300)]
    asked = [{"prompt": p, "token_ids": expected(model, p, NUM_TOKENS)} for p in prompts]
    questions = shared_folder / "asked.json"
    questions.write_text(json.dumps(asked))
    return [str(model), str(cache), str(questions)]


def seen(scenario: str, arguments: list[str]) -> str:
    """What the scenario told; it must have ended well."""
    done = subprocess.run(
        sandbox.inside([sys.executable, "-m", f"charts.cluster.{scenario}", *arguments]),
        env=os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=580,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_manifests_serve_roll_and_scale_without_losing_a_request(
    cluster_arguments: list[str],
) -> None:
    assert "decode scaled from 1 to 2, both decode" in seen("rolling", cluster_arguments)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_manifests_with_tls_serve_those_with_certificates_and_keys_alone(
    cluster_arguments: list[str],
) -> None:
    assert "a renewed Secret counts without a restart" in seen("locked", cluster_arguments)
