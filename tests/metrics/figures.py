"""What a process told Prometheus: samples by name and labels; and the names that queries use."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "octavo.json"
DOCS = ROOT / "docs" / "metrics.md"

# Of every figure of ours that its role, or its process, may have; the rest is the row's own.
COMMON_LABELS = {"model_name", "role", "le"}
OURS = re.compile(r"\b(?:vllm:|octavo[_:])[a-z0-9_:]+|\bprocess_[a-z_]+")


@dataclass(frozen=True)
class Scrape:
    """One process at one time."""

    families: dict[str, Metric]  # by their name in docs/metrics.md

    @classmethod
    async def of(cls, port: int) -> "Scrape":
        return await cls.at(f"http://127.0.0.1:{port}/metrics")

    @classmethod
    async def at(cls, url: str, **options: Any) -> "Scrape":
        async with httpx.AsyncClient(timeout=10, **options) as client:
            reply = await client.get(url)
        assert reply.status_code == 200
        return cls({_name(each): each for each in text_string_to_metric_families(reply.text)})

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels, of a histogram too (`name_count`)."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert found, f"{name} {labels} is not told"
        return sum(found)

    def since(self, earlier: "Scrape") -> "Growth":
        return Growth(earlier, self)

    @property
    def series(self) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        return {
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in self.families.values()
            for sample in family.samples
        }

    @property
    def sample_names(self) -> set[str]:
        return {name for name, _ in self.series}


@dataclass(frozen=True)
class Growth:
    """What came between two scrapes of one process."""

    earlier: Scrape
    later: Scrape

    def value(self, name: str, **labels: str) -> float:
        return self.later.value(name, **labels) - self.earlier.value(name, **labels)


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def documented() -> dict[str, tuple[str, set[str], set[str]]]:
    """Rows of docs/metrics.md: type, labels, roles, by name."""
    rows = {}
    for line in DOCS.read_text().splitlines():
        if line.startswith("| `"):
            name, kind, labels, where = [part.strip() for part in line.split("|")[1:5]]
            roles = {"router", "prefill", "decode"} if where == "all" else set(where.split(", "))
            rows[name.strip("`")] = kind, set(re.findall(r"`(\w+)`", labels)), roles
    return rows


def dashboard_queries() -> list[str]:
    """Every expression, as Grafana would send it."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [expr.replace("$__rate_interval", "10s").replace("$job", ".+") for expr in found]


def rules() -> list[dict[str, Any]]:
    """Recording rules and alerts."""
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def names_in(expr: str) -> set[str]:
    """Metrics of ours, and of the process, that an expression reads."""
    return set(OURS.findall(re.sub(r'"[^"]*"', '""', expr)))
