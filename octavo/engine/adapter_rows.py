"""Which rows of a step go through which adapter."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from octavo.engine.adapter import Adapter, Rows
from octavo.engine.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """All rows of one adapter."""

    adapter: Adapter
    rows: Rows  # of the batch
    logit_rows: Rows  # of the batch's logit_rows

    def on(self, device: torch.device) -> "AdapterRows":
        return AdapterRows(self.adapter, _on(self.rows, device), _on(self.logit_rows, device))


def find_adapter_rows(
    plan: StepPlan, query_start: torch.Tensor, logit_rows: torch.Tensor
) -> tuple[AdapterRows, ...]:
    """Adapters in the order in which the plan meets them; query_start, logit_rows: the batch's."""
    if not plan.has_adapters:
        return ()
    starts = query_start.numpy()
    rows: dict[Adapter, list[npt.NDArray[np.int64]]] = {}
    for index, one in enumerate([*plan.single_rows, *(chunk.seq for chunk in plan.chunks)]):
        if one.adapter is not None:
            own = np.arange(starts[index], starts[index + 1], dtype=np.int64)
            rows.setdefault(one.adapter, []).append(own)
    found = []
    for adapter, parts in rows.items():
        own = np.concatenate(parts)
        asked = np.flatnonzero(np.isin(logit_rows.numpy(), own))
        found.append(AdapterRows(adapter, _rows(own), _rows(asked)))
    return tuple(found)


def _rows(indices: npt.NDArray[np.int64]) -> Rows:
    """A slice, which copies nothing, where the indices are a run."""
    if len(indices) == 0:
        return slice(0, 0)
    first, last = int(indices[0]), int(indices[-1])
    is_run = last - first + 1 == len(indices)
    return slice(first, last + 1) if is_run else torch.from_numpy(indices)


def _on(rows: Rows, device: torch.device) -> Rows:
    # Pinned, so that the host goes on while it is copied.
    return rows if isinstance(rows, slice) else rows.pin_memory().to(device, non_blocking=True)
