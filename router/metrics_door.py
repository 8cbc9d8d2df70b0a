"""A router's port for Prometheus alone."""

from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from octavo.metrics.server import running_metrics
from octavo.router.config import RouterConfig


def open_metrics(
    config: RouterConfig, registry: CollectorRegistry, stack: AsyncExitStack
) -> int | None:
    """Its number, if it is wanted.

    Raises:
        OSError: the address cannot be had.
    """
    if config.metrics_address is None or not config.serves_metrics:
        return None
    serving = running_metrics(
        registry, config.metrics_address, config.metrics_tls, config.metrics_address_file
    )
    return stack.enter_context(serving)
