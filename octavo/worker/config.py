"""Settings that prefill and decode workers share; each adds its own and its defaults."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from octavo.checkpoint.adapter_config import parse_adapters
from octavo.engine.config import EngineConfig
from octavo.engine.core_set import parse_cores
from octavo.logs import check_log_settings
from octavo.rpc.exposure import check_host_port, check_plaintext, is_address
from octavo.rpc.tls import TlsFiles

TRANSPORTS = ("auto", "shared_memory", "bytes")
AUTO_CORES = "auto"
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
    metrics_address: str | None = field(
        default=None, metadata={"help": "Where Prometheus reads, as host:port; default: nowhere."}
    )
    metrics_address_file: Path | None = field(
        default=None, metadata={"help": "Write where that is here, once it is open."}
    )
    advertise_address: str | None = field(
        default=None, metadata={"help": "Where others reach it; default: listen_address."}
    )
    worker_id: str | None = field(
        default=None, metadata={"help": "Name in logs and Redis; default: role, host and pid."}
    )
    redis_url: str | None = field(default=None, metadata={"help": "Default: no Redis."})
    internal_tls_dir: Path | None = field(
        default=None,
        metadata={"help": "Folder of tls.crt, tls.key and ca.crt: mTLS with routers and workers."},
    )
    insecure: bool = field(
        default=False, metadata={"help": "Serve without encryption beyond this machine."}
    )
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
    max_draft_tokens: int = field(
        default=8,
        metadata={"help": "Tokens a step guesses ahead for a sequence by prompt lookup; 0: none."},
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
        metadata={
            "help": "Compute on these cores only, as 0-3,8; auto: on all this process may use, "
            "no more than its share of processor time keeps busy; default: on one, anywhere."
        },
    )
    core_board: Path | None = field(
        default=None,
        metadata={"help": "File by which workers of one host lend each other idle cpu_cores."},
    )
    lora: tuple[str, ...] = field(
        default=(), metadata={"help": "NAME=FOLDER of a LoRA adapter in PEFT's format; repeat it."}
    )
    lora_root: Path | None = field(
        default=None,
        metadata={
            "help": "Adapters below this folder may be loaded by LoadAdapter; default: none."
        },
    )
    max_loras: int = field(default=16, metadata={"help": "Adapters loaded at once."})
    max_lora_rank: int = field(default=64, metadata={"help": "Largest rank of an adapter."})
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
        if self.internal_tls is None:
            check_plaintext(self.listen_address, self.insecure, "--internal-tls-dir")
        self._check_metrics_address()
        if not self.max_request_s > 0:
            raise ValueError(f"max_request_s must be positive, got {self.max_request_s}")
        if not self.drain_timeout_s >= 0:
            raise ValueError(f"drain_timeout_s must not be negative, got {self.drain_timeout_s}")
        if self.cpu_cores is None:
            if self.core_board is not None:
                raise ValueError("core_board needs cpu_cores: which cores are this worker's?")
        elif self.cpu_cores != AUTO_CORES:
            parse_cores(self.cpu_cores)
        self.engine_config()  # checks the rest

    @property
    def internal_tls(self) -> TlsFiles | None:
        """What this worker shows to routers and other workers, and asks of them."""
        return TlsFiles.in_folder(self.internal_tls_dir) if self.internal_tls_dir else None

    @property
    def serves_metrics(self) -> bool:
        return is_address(self.metrics_address)

    def _check_metrics_address(self) -> None:
        address, field = self.metrics_address, "metrics_address"
        if address is None or not is_address(address):
            return
        check_host_port(address, field)
        if self.internal_tls is None:
            check_plaintext(address, self.insecure, "--internal-tls-dir", field)

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
            max_draft_tokens=self.max_draft_tokens,
            gpu_memory_utilization=self.gpu_memory_utilization,
            kv_cache_bytes=self.kv_cache_bytes,
            num_blocks=self.num_blocks,
            preemption="recompute",  # no memory for swap where leases are never preempted
            lora=parse_adapters(self.lora),
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
        )

    def reachable_address(self, port: int) -> str:
        """The address to tell others, once the port is known."""
        if self.advertise_address is not None:
            return self.advertise_address
        if self.listen_address.startswith("unix:"):
            return self.listen_address
        return f"{self.listen_address.rpartition(':')[0]}:{port}"
