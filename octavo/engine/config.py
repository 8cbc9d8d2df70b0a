"""What an engine is asked to be; build.py makes it so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = ("auto", "fp8")
DEVICES = ("auto", "cpu", "cuda")
PREEMPTIONS = ("auto", "recompute", "swap")
QUANTIZATIONS = (None, "int8", "int4", "gguf")
BLOCK_SIZES = range(8, 129, 8)
MAX_DRAFT_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    Raises:
        ValueError: a setting is out of range; the message names it.
    """

    model: str  # folder, GGUF file or hub id
    dtype: str = "auto"  # bfloat16 where the device computes in it, else the checkpoint's
    kv_dtype: str = "auto"  # as dtype; fp8 halves the cache, on GPUs that compute with it
    device: str = "auto"  # cuda if there is one
    quantization: str | None = None  # int8, int4, gguf: see models/precision.py; CPU only
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None  # by device and model size
    max_model_len: int | None = None  # the model's own, clamped to what the pool holds
    gpu_memory_utilization: float = 0.9  # share of the GPU for weights, activations and KV
    kv_cache_bytes: int | None = None  # on the CPU; by default a quarter of what is free
    num_blocks: int | None = None  # instead of a byte budget
    preemption: str = "auto"  # what costs less for a sequence (preemption_cost.py), or always one
    swap_space_bytes: int | None = None  # host memory for swap; by default as sizing.py has it
    cuda_graphs: bool = True  # replay decode steps on an NVIDIA GPU
    max_draft_tokens: int = 8  # guessed for a sequence in a step by prompt lookup; 0: none
    lora: Mapping[str, Path] = field(default_factory=dict)  # adapters loaded at start, by name
    max_loras: int = 16  # adapters loaded at once
    max_lora_rank: int = 64

    def __post_init__(self) -> None:
        _check_one_of("dtype", self.dtype, DTYPES)
        _check_one_of("kv_dtype", self.kv_dtype, KV_DTYPES)
        _check_one_of("device", self.device, DEVICES)
        _check_one_of("quantization", self.quantization, QUANTIZATIONS)
        _check_one_of("preemption", self.preemption, PREEMPTIONS)
        if self.swap_space_bytes is not None and self.swap_space_bytes < 0:
            raise ValueError(f"swap_space_bytes must not be negative, got {self.swap_space_bytes}")
        _check_one_of("block_size", self.block_size, BLOCK_SIZES)
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"gpu_memory_utilization must be above 0 and at most 1, "
                f"got {self.gpu_memory_utilization}"
            )
        if not 0 <= self.max_draft_tokens <= MAX_DRAFT_TOKENS:
            raise ValueError(
                f"max_draft_tokens must be 0 (off) to {MAX_DRAFT_TOKENS}, "
                f"got {self.max_draft_tokens}"
            )
        _check_positive("max_num_seqs", self.max_num_seqs)
        for name in ("max_num_seqs", "max_loras", "max_lora_rank"):
            _check_positive(name, getattr(self, name))
        for name in ("max_num_batched_tokens", "max_model_len", "kv_cache_bytes", "num_blocks"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        if len(self.lora) > self.max_loras:
            raise ValueError(f"max_loras is {self.max_loras}, and lora names {len(self.lora)}")


def _check_one_of(name: str, value: object, allowed: tuple[str | None, ...] | range) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value}")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
