"""What each figure must reach (floor) and tries to reach (aim): the one place that says so."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure's floor and aim; both are upper limits where less is better."""

    text: str
    floor: float
    aim: float
    unit: str = "x"
    less_is_better: bool = False

    def reaches(self, value: float, limit: float) -> bool:
        return value <= limit if self.less_is_better else value >= limit

    def verdict(self, value: float) -> str:
        """aim, floor, or below."""
        if self.reaches(value, self.aim):
            return "aim"
        return "floor" if self.reaches(value, self.floor) else "below"


def _by_level(key: str, text: str, levels: dict[int, tuple[float, float]]) -> dict[str, Goal]:
    return {f"{key}-{n}": Goal(f"{text}, {n} at once", *limits) for n, limits in levels.items()}


def _most(text: str, floor: float, aim: float, unit: str = "x") -> Goal:
    return Goal(text, floor, aim, unit, less_is_better=True)


GOALS: dict[str, Goal] = {
    **_by_level(
        "bf16-vllm",
        "bf16 over vLLM, served",
        {1: (0.7, 1.3), 8: (0.8, 1.3), 32: (0.9, 1.15), 64: (1.0, 1.3)},
    ),
    **_by_level(
        "int8-vllm",
        "int8 over vLLM, served",
        {1: (1.0, 2.0), 8: (1.0, 1.6), 32: (1.1, 1.6), 64: (1.2, 1.6)},
    ),
    **_by_level(
        "llm-vllm",
        "LLM in process over vLLM's",
        {1: (1.0, 1.4), 8: (1.0, 1.35), 32: (0.95, 1.2)},
    ),
    "int4-llama-1": Goal("int4 over llama.cpp Q4, 1 core, 1 at once", 1.0, 1.5),
    **_by_level("int8-llama", "int8 over llama.cpp Q8, 1 core", {8: (1.5, 2.0), 32: (3.0, 5.0)}),
    **_by_level(
        "bf16-transformers",
        "bf16 over transformers generate",
        {1: (1.5, 2.5), 8: (1.5, 2.5), 32: (1.3, 2.2)},
    ),
    "bf16-continuous-32": Goal("bf16 over transformers continuous batching, 32 at once", 1.5, 2.5),
    "bf16-naive-32": Goal("bf16 over one request after another, 32 requests", 4.8, 12.0),
    "rag-bf16": Goal("shared document, bf16 over vLLM, 32 at once", 1.3, 2.0),
    "rag-int8": Goal("shared document, int8 over vLLM, 32 at once", 1.6, 3.0),
    "shared-attention": Goal("decode attention, plain over grouped, 2,048 shared", 3.0, 8.0),
    "lookup-steps": Goal("tokens a step where the answer quotes, 1 at once", 1.5, 3.0, "tokens"),
    **_by_level(
        "lookup-quote",
        "prompt lookup over none, quotes",
        {1: (1.2, 2.0), 32: (0.97, 1.2)},
    ),
    **_by_level(
        "lookup-story",
        "prompt lookup over none, nothing to quote",
        {1: (0.97, 1.0), 32: (0.97, 1.0)},
    ),
    "itl-burst": _most("p99 ITL while long prompts arrive, over vLLM's", 0.5, 0.25),
    "ttft-2048": _most("TTFT of a 2,048-token prompt, over vLLM's", 1.3, 1.0),
    "prefill-flops": Goal("prefill FLOP/s of the measured GEMM", 60.0, 85.0, "%"),
    "step-stream": _most("step at batch 1 over streaming its weights", 1.9, 1.3),
    "handoff-shm": _most("hand-off share of TTFT, shared memory", 5.0, 2.0, "%"),
    "handoff-bytes": _most("hand-off share of TTFT, gRPC bytes", 25.0, 10.0, "%"),
    "warm-ttft": _most("warm TTFT over cold, 90 % shared", 0.25, 0.15),
    "cache-cost": _most("cost of the prefix cache without hits", 2.0, 1.0, "%"),
    "served-bare": Goal("served over bare forward loop, 32 streams", 0.90, 0.97),
    "router-tokens": Goal("router relay, one core, scripted model", 10_000, 25_000, "tokens/s"),
    "router-requests": Goal("router, one core, scripted model", 300, 800, "requests/s"),
    "http-added": _most("HTTP over gRPC, more a token at the median", 1.0, 0.2, "ms"),
    "http-vllm-bench": _most("our load and vllm bench serve differ", 3.0, 1.0, "%"),
    "ready": _most("time to ready over vLLM's", 0.2, 0.05),
    "slots": Goal("KV slots holding live tokens, block 16", 96.0, 97.5, "%"),
    "concurrency": Goal("concurrency over reserving the longest output", 2.5, 4.0),
    "step-overhead": _most("work outside the model per step, 64 sequences", 2.0, 0.5, "ms"),
}
