"""for_device gives a device its kernels."""

import inspect
import subprocess
import sys

import pytest
import torch

from octavo.kernels import reference
from octavo.kernels.gpu import ops
from octavo.kernels.select import Kernels, UnsupportedDevice, for_device

OPERATIONS = sorted(name for name in vars(Kernels) if not name.startswith("_"))


def test_a_cuda_device_gets_the_triton_kernels() -> None:
    assert for_device(torch.device("cuda", 1)) is ops


def test_another_device_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedDevice, match="meta"):
        for_device(torch.device("meta"))


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "pack_linear"])
def test_gpu_operations_take_what_the_reference_takes(operation: str) -> None:
    wanted = inspect.signature(getattr(reference, operation))
    assert inspect.signature(getattr(ops, operation)) == wanted


def test_choosing_kernels_imports_no_compiler() -> None:
    script = (
        "import sys, octavo.kernels.select, octavo.kernels.reference;"
        "assert not {'triton', 'numba'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
