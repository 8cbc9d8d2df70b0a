"""Rendered objects, and how they refer to each other."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deploy.render import CHART, render

Object = dict[str, Any]
VALUES_FILES = sorted((CHART / "ci").glob("*.yaml"))
OCTAVO_ROLES = ("router", "prefill", "decode")


def values_of(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text()) or {}


def objects_of(values: Mapping[str, Any] | None = None) -> list[Object]:
    return list(yaml.load_all(render(values), Loader=yaml.CSafeLoader))


@cache
def objects_of_file(path: Path) -> list[Object]:
    """Read by many tests; change nothing in it."""
    return objects_of(values_of(path))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [item for item in objects if item["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [item for item in of_kind(objects, kind) if item["metadata"]["name"] == name]
    return found


def pod_of(workload: Object) -> Object:
    """Its pods' metadata and spec."""
    return workload["spec"]["template"]


def containers(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Every container: its workload's name, its pod's spec, itself."""
    for workload in of_kind(objects, "Deployment", "StatefulSet"):
        spec = pod_of(workload)["spec"]
        for container in spec["containers"] + spec.get("initContainers", []):
            yield workload["metadata"]["name"], spec, container


def selects(selector: Mapping[str, str], workload: Object) -> bool:
    labels = pod_of(workload)["metadata"]["labels"]
    return all(labels.get(name) == value for name, value in selector.items())


def with_value(path: str, value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} of "a.b"."""
    *outer, last = path.split(".")
    values: dict[str, Any] = {}
    inner = values
    for part in outer:
        inner = inner.setdefault(part, {})
    inner[last] = value
    return values
