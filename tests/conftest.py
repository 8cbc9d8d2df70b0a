"""Settings that must stand before any test module is imported, and kernels before any test."""

import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Who compiles the CPU kernels of which dtypes, or sees that the cache has them.
COMPILED_BY = {"gw0": ("float32", "float16"), "gw1": ("bfloat16",)}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Processes of one run share the work: tests and services would each compile for themselves."""
    worker = getattr(session.config, "workerinput", {}).get("workerid")
    if worker in COMPILED_BY and "octavo.kernels.select" in sys.modules:
        import torch

        from octavo.kernels.cpu.ops import warm_up

        for dtype in COMPILED_BY[worker]:
            warm_up(getattr(torch, dtype))
