"""What a process tells Prometheus: docs/metrics.md lists every figure."""
