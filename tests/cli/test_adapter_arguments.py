"""`octavo up` hands LoRA adapters on to its roles, by paths that hold wherever they run."""

from dataclasses import replace
from pathlib import Path

import pytest

from cli.test_core_plan import CONFIG
from octavo.cli.child import Child
from octavo.cli.plan import Plan
from octavo.cli.up_config import UpConfig


def all_children(config: UpConfig) -> list[Child]:
    plan = Plan(config, Path("m"), Path("run"), None)
    return [*plan.workers(), plan.first_router("none")]


def test_workers_get_the_adapters_and_all_get_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    config = replace(CONFIG, lora=("a=adapters/a", "b=/b"), lora_root=Path("adapters"))
    for child in all_children(config):
        arguments = child.arguments
        given = [arguments[i + 1] for i, flag in enumerate(arguments) if flag == "--lora"]
        assert given == ([] if child.name == "router" else ["a=/adapters/a", "b=/b"])
        assert arguments[arguments.index("--lora-root") + 1] == "/adapters"


def test_nothing_is_said_of_adapters_without_any() -> None:
    for child in all_children(CONFIG):
        assert not any(flag.startswith("--lora") for flag in child.arguments)


def test_a_wrong_setting_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="lora must be NAME=PATH, got 'adapters/a'"):
        replace(CONFIG, lora=("adapters/a",))
