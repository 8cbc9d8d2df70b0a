"""Which cores a worker takes as its own."""

from typing import Any

import pytest

from octavo.engine.core_set import llm_cores
from octavo.engine.cores import AnyCore
from octavo.engine.pinned_team import PinnedTeam
from octavo.worker.config import WorkerConfig
from octavo.worker.cores import cores_of


def test_auto_is_every_core_that_the_process_may_use() -> None:
    cores = cores_of(WorkerConfig(model="m", cpu_cores="auto"))
    assert isinstance(cores, PinnedTeam)
    try:
        assert cores.num_helpers == len(llm_cores(None)) - 1
    finally:
        cores.work_alone()
    assert isinstance(cores_of(WorkerConfig(model="m")), AnyCore)


@pytest.mark.parametrize("settings", [{"cpu_cores": "all"}, {"core_board": "/tmp/board"}])
def test_cores_that_cannot_be_meant_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cores"):
        WorkerConfig(model="m", **settings)
