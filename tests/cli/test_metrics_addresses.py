"""`octavo up` tells each process where to show its metrics, and Prometheus where they are."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.test_core_plan import CONFIG
from octavo.cli.addresses import Addresses
from octavo.cli.child import Child
from octavo.cli.metrics_addresses import SUFFIX, TARGETS, read_metrics_addresses
from octavo.cli.plan import Plan
from octavo.cli.up import folder_for


def children_of(asked: str | None, folder: Path) -> list[Child]:
    plan = Plan(replace(CONFIG, metrics_address=asked, routers=2), Path("m"), folder, None)
    others = plan.other_routers(Addresses("127.0.0.1:1", None))
    return [*plan.workers(), plan.first_router("none"), *others]


def told(child: Child, flag: str) -> str:
    return child.arguments[child.arguments.index(flag) + 1]


@pytest.mark.parametrize(
    ("asked", "addresses"),
    [
        (None, ["127.0.0.1:0"] * 4),
        ("[::1]:0", ["[::1]:0"] * 4),
        ("127.0.0.1:9464", [f"127.0.0.1:{port}" for port in (9464, 9465, 9466, 9467)]),
        ("[::1]:9464", [f"[::1]:{port}" for port in (9464, 9465, 9466, 9467)]),
    ],
)
def test_each_process_is_told_of_an_address_and_a_file_of_its_own(
    asked: str | None, addresses: list[str], tmp_path: Path
) -> None:
    children = children_of(asked, tmp_path)
    assert [child.name for child in children] == ["prefill-0", "decode-0", "router-0", "router-1"]
    assert [told(child, "--metrics-address") for child in children] == addresses
    for number, child in enumerate(children):
        Path(told(child, "--metrics-address-file")).write_text(f"127.0.0.1:{number}")
    read_metrics_addresses(tmp_path, children)
    assert [child.metrics_address for child in children] == [f"127.0.0.1:{n}" for n in range(4)]
    assert json.loads((tmp_path / TARGETS).read_text()) == [
        {"targets": [child.metrics_address], "labels": {"process": child.name}}
        for child in children
    ]


def test_without_metrics_nothing_is_told_not_even_by_an_earlier_service(tmp_path: Path) -> None:
    for name in (TARGETS, f"prefill-0{SUFFIX}"):
        (tmp_path / name).write_text("of an earlier service")
    with folder_for(replace(CONFIG, run_dir=tmp_path)) as folder:
        children = children_of("none", folder)
        assert [told(child, "--metrics-address") for child in children] == ["none"] * 4
        read_metrics_addresses(folder, children)
        assert [child.metrics_address for child in children] == ["none"] * 4
        assert not list(folder.iterdir())
