"""What one scrape shows: the role's own figures, and those of its process."""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry of its own: several roles may live in one process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(collector)
    return registry
