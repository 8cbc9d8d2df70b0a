"""Figures of a process as prometheus_client takes them, each made when somebody asks.

Whoever counts keeps plain numbers and Histograms; nothing here is on the way of a request.
"""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import floatToGoString

from octavo.histogram import Histogram

Value = TypeVar("Value")
# By the values of the labels.
Labelled = Mapping[tuple[str, ...], Value]


class Families:
    """Makes figures that have these labels, and those of their own."""

    def __init__(self, **labels: str) -> None:
        self._names = tuple(labels)
        self._values = tuple(labels.values())

    def gauge(
        self, name: str, text: str, value: float | Labelled[float], labels: tuple[str, ...] = ()
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=(*self._names, *labels))
        for own, each in _labelled(value).items():
            family.add_metric((*self._values, *own), each)
        return family

    def counter(
        self, name: str, text: str, value: float | Labelled[float], labels: tuple[str, ...] = ()
    ) -> CounterMetricFamily:
        """name: ends in _total."""
        family = CounterMetricFamily(name, text, labels=(*self._names, *labels))
        for own, each in _labelled(value).items():
            family.add_metric((*self._values, *own), each)
        return family

    def histogram(
        self,
        name: str,
        text: str,
        value: Histogram | Labelled[Histogram],
        labels: tuple[str, ...] = (),
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, text, labels=(*self._names, *labels))
        for own, each in _labelled(value).items():
            total = each.sum
            buckets = [(_limit(limit), count) for limit, count in each.cumulative()]
            family.add_metric((*self._values, *own), buckets, total)
        return family


def _limit(limit: float) -> str:
    """As prometheus_client writes its own."""
    return str(floatToGoString(limit))  # type: ignore[no-untyped-call]


def _labelled(value: Value | Labelled[Value]) -> Labelled[Value]:
    return value if isinstance(value, Mapping) else {(): value}
