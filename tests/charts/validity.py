"""Whether the API server would take an object: its strict schemas, and KEDA's own."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

from charts.objects import Object

# The oldest version that the chart admits with schemas to be had, and the newest.
VERSIONS = ("1.30", "1.37")
# openAPIV3Schema of config/crd/bases/keda.sh_scaledobjects.yaml in kedacore/keda (Apache-2.0).
KEDA_SCHEMA = Path(__file__).parent / "keda_scaledobject.json"


def check_valid(objects: list[Object], version: str) -> None:
    """Raise what a server of this version would say; unknown fields count."""
    seen = set()
    for item in objects:
        identity = (item["kind"], item["metadata"]["name"])
        assert identity not in seen, f"{identity} comes twice"
        seen.add(identity)
        assert len(item["metadata"]["name"]) <= 63
        if item["apiVersion"].startswith("keda.sh/"):
            jsonschema.validate(item, _keda_schema())
        else:
            kubernetes_validate.validate(item, version, strict=True)


@cache
def _keda_schema() -> dict[str, Any]:
    return _closed(json.loads(KEDA_SCHEMA.read_text()))


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
