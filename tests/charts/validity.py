"""Whether the API server would take an object: its strict schemas, KEDA's and the operator's."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from kubernetes_validate.utils import all_versions, schema_contents
from referencing import Registry, Resource

from charts.objects import Object

# The oldest version that the chart admits, and the newest with schemas to be had.
VERSIONS = ("1.30", "1.37")
# openAPIV3Schemas of custom resources (Apache-2.0): config/crd/bases/keda.sh_scaledobjects.yaml in
# kedacore/keda, example/prometheus-operator-crd in prometheus-operator/prometheus-operator, of a
# PodMonitor the parts that the chart has use for.
CUSTOM = {"ScaledObject": "keda_scaledobject", "PodMonitor": "podmonitor"}
CUSTOM["PrometheusRule"] = "prometheusrule"


def check_valid(objects: list[Object], version: str) -> None:
    """Raise what a server of this version would say; unknown fields count."""
    seen = set()
    for item in objects:
        identity = (item["kind"], item["metadata"]["name"])
        assert identity not in seen, f"{identity} comes twice"
        seen.add(identity)
        assert len(item["metadata"]["name"]) <= 63
        _validator(version, item["kind"], item["apiVersion"]).validate(item)


@cache
def _validator(version: str, kind: str, api_version: str) -> Any:
    """As kubernetes_validate.validate(strict=True) makes one anew, in 50 ms, for every object."""
    if kind in CUSTOM:
        schema = json.loads((Path(__file__).parent / f"{CUSTOM[kind]}.json").read_text())
        return jsonschema.Draft202012Validator(_closed(schema))
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)  # apps/v1: apps-v1
    full = [known for known in all_versions() if known.startswith(f"{version}.")][-1]
    folder = f"kubernetes-json-schema/v{full}-local-strict"
    schema = schema_contents(f"{folder}/{kind.lower()}-{group}.json", version)
    return jsonschema.Draft202012Validator(schema, registry=_definitions(folder, version))


@cache
def _definitions(folder: str, version: str) -> Any:
    definitions = schema_contents(f"{folder}/_definitions.json", version)
    return Resource.from_contents(definitions) @ Registry()


def _closed(schema: Any) -> Any:
    """The schema without unknown fields, as the API server prunes or refuses them."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    if closed.get("properties", {}).keys() >= {"kind", "spec"}:
        closed["properties"]["metadata"] = {"type": "object"}
    return closed
