"""What tests use of bench/, whose scripts lie beside each other."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from structured_output import (
    check_outputs,
    random_requests,
    run_batch,
)

__all__ = ["check_outputs", "random_requests", "run_batch"]
