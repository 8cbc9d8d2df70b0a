"""What one scrape shows: the role's own figures, and those of its process."""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.registry import Collector

# Whatever a reader accepts: prometheus_client writes vllm_x for vllm:x in OpenMetrics' form unless
# its reader allows any name, which Prometheus 2 does not.
PLAIN_TEXT = "text/plain; version=0.0.4"


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry of its own: several roles may live in one process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(collector)
    return registry
