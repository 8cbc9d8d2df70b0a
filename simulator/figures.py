"""Throughput and latencies by the definitions of bench/load.py, from requests' stories."""

import numpy as np

from simulator.workload import Request

Figures = dict[str, float]


def latencies(requests: list[Request]) -> Figures:
    """Throughput in tokens/s and requests/s, times in milliseconds."""
    begin = min(request.sent_s for request in requests)
    end = max(request.arrivals_s[-1] for request in requests)
    num_tokens = sum(len(request.arrivals_s) for request in requests)
    figures = {
        "output_tokens_per_s": num_tokens / (end - begin),
        "requests_per_s": len(requests) / (end - begin),
    }
    ttfts = [request.arrivals_s[0] - request.sent_s for request in requests]
    itls = np.concatenate([np.diff(request.arrivals_s) for request in requests])
    for name, values in (("ttft", np.array(ttfts)), ("itl", itls)):
        for percent in (50, 90, 99):
            at = float(np.percentile(values, percent)) if len(values) else 0.0
            figures[f"{name}_p{percent}_ms"] = at * 1e3
    return figures


def hit_rate(requests: list[Request]) -> float:
    """Share of prompt tokens that whoever computed the prompt found in its cache."""
    return sum(r.cached_tokens for r in requests) / sum(r.num_prompt for r in requests)


def error_percent(simulated: float, measured: float) -> float:
    return 100 * (simulated - measured) / measured
