"""Settings that prefill and decode workers share; each adds its own and its defaults."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from octavo.engine.config import EngineConfig
from octavo.engine.core_set import parse_cores
from octavo.logs import check_log_settings

TRANSPORTS = ("auto", "shared_memory", "bytes")
_WILDCARD = re.compile(r"(0\.0\.0\.0|\[::\]|\*|):\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How a worker listens, what it runs and how it is found.

    Raises:
        ValueError: a setting is out of range; the message names it.
    """

    model: str = field(metadata={"help": "Folder, GGUF file or hub id."})
    listen_address: str = field(
        default="127.0.0.1:0", metadata={"help": "host:port (0 takes a free one) or unix:path."}
    )
    advertise_address: str | None = field(
        default=None, metadata={"help": "Where others reach it; default: listen_address."}
    )
    worker_id: str | None = field(
        default=None, metadata={"help": "Name in logs and Redis; default: role, host and pid."}
    )
    redis_url: str | None = field(default=None, metadata={"help": "Default: no Redis."})
    dtype: str = field(default="auto", metadata={"help": "auto, float32, bfloat16 or float16."})
    kv_dtype: str = field(
        default="auto", metadata={"help": "auto (as dtype) or fp8 (GPU, 8.9 or later)."}
    )
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda."})
    quantization: str | None = field(
        default=None, metadata={"help": "int8, int4, gguf (CPU only); default: as dtype says."}
    )
    block_size: int = field(default=16, metadata={"help": "Tokens a block, 8 to 128."})
    num_blocks: int | None = field(
        default=None, metadata={"help": "Blocks of the pool, instead of a memory budget."}
    )
    kv_cache_bytes: int | None = field(
        default=None, metadata={"help": "Memory budget of the pool on a CPU."}
    )
    cuda_graphs: bool = field(
        default=True, metadata={"help": "Replay decode steps on a GPU instead of launching them."}
    )
    gpu_memory_utilization: float = field(
        default=0.9, metadata={"help": "Share of a GPU for weights, activations and KV."}
    )
    max_model_len: int | None = field(
        default=None, metadata={"help": "Prompt and output tokens; default: the model's."}
    )
    max_num_seqs: int = field(default=256, metadata={"help": "Sequences in one step at most."})
    max_num_batched_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of one step; default: 8192 on a GPU, 32 to 512 on a CPU by model size."
        },
    )
    transport: str = field(
        default="auto",
        metadata={"help": "auto (shared memory on one host, else bytes), shared_memory or bytes."},
    )
    cpu_cores: str | None = field(
        default=None,
        metadata={"help": "Compute on these cores only, as 0-3,8; default: on one, anywhere."},
    )
    core_board: Path | None = field(
        default=None,
        metadata={"help": "File by which workers of one host lend each other idle cpu_cores."},
    )
    max_request_s: float = field(
        default=600.0, metadata={"help": "Ends requests that came without a deadline."}
    )
    drain_timeout_s: float = field(
        default=30.0, metadata={"help": "How long open streams may finish after SIGTERM."}
    )
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error."})
    log_format: str = field(
        default="text", metadata={"help": "text, or json for an object a line."}
    )

    def __post_init__(self) -> None:
        check_log_settings(self.log_level, self.log_format)
        if not self.model:
            raise ValueError("model must name a folder, a GGUF file or a hub id")
        if self.transport not in TRANSPORTS:
            raise ValueError(
                f"transport must be one of {', '.join(TRANSPORTS)}, got {self.transport}"
            )
        if self.advertise_address is None and _WILDCARD.fullmatch(self.listen_address):
            raise ValueError(
                f"advertise_address is needed: {self.listen_address} is no address to reach"
            )
        if not self.max_request_s > 0:
            raise ValueError(f"max_request_s must be positive, got {self.max_request_s}")
        if not self.drain_timeout_s >= 0:
            raise ValueError(f"drain_timeout_s must not be negative, got {self.drain_timeout_s}")
        if self.cpu_cores is not None:
            parse_cores(self.cpu_cores)
        elif self.core_board is not None:
            raise ValueError("core_board needs cpu_cores: which cores are this worker's?")
        self.engine_config()  # checks the rest

    def engine_config(self) -> EngineConfig:
        """What the engine is told."""
        return EngineConfig(
            model=self.model,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            device=self.device,
            quantization=self.quantization,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            cuda_graphs=self.cuda_graphs,
            gpu_memory_utilization=self.gpu_memory_utilization,
            kv_cache_bytes=self.kv_cache_bytes,
            num_blocks=self.num_blocks,
        )

    def reachable_address(self, port: int) -> str:
        """The address to tell others, once the port is known."""
        if self.advertise_address is not None:
            return self.advertise_address
        if self.listen_address.startswith("unix:"):
            return self.listen_address
        return f"{self.listen_address.rpartition(':')[0]}:{port}"
