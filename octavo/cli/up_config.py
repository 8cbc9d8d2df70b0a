"""Settings of `octavo up`, each an option; every other one reaches the roles through OCTAVO_*."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.checkpoint.adapter_config import parse_adapters
from octavo.logs import check_log_settings
from octavo.router.config import check_address
from octavo.rpc.exposure import check_host_port, is_address
from octavo.socket_folder import check_socket_folder


def setting(help_text: str, default: Any, **metadata: Any) -> Any:
    """A field that `octavo up` offers as an option with this help."""
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """One service on this machine: its model, its processes, where clients find it."""

    model: str = setting("Folder, GGUF file or hub id.", "smollm2-135m-instruct")
    address: str | None = setting(
        "Where clients connect. Default: 127.0.0.1:50051, or a free port where that is taken.",
        None,
        envvar=None,  # OCTAVO_ADDRESS says where a client finds its service
    )
    http_address: str | None = setting(
        "Where HTTP clients connect, or none. Default: 127.0.0.1:8000, or a free port.", None
    )
    metrics_address: str | None = setting(
        "Where Prometheus reads the first process, the others at the ports behind it; or none. "
        "Default: free ports.",
        None,
    )
    log_level: str = setting("debug, info, warning or error.", "info")
    log_format: str = setting("text or json, of the roles' logs.", "text")
    prefill_workers: int = setting("How many, 1 to 64.", 1)
    decode_workers: int = setting("How many, 1 to 64.", 1)
    routers: int = setting("Processes that share the address, 1 to 16.", 1)
    redis_url: str | None = setting("Default: an embedded Redis.", None)
    redis: bool = setting("--no-redis runs without any.", True)
    dtype: str = setting("auto, float32, bfloat16 or float16.", "auto")
    kv_dtype: str = setting("auto (as dtype) or fp8, on a GPU of 8.9 or later.", "auto")
    device: str = setting("auto, cpu or cuda.", "auto")
    quantization: str | None = setting("int8, int4, gguf; default: none.", None)
    lora: tuple[str, ...] = setting("NAME=FOLDER of a LoRA adapter; repeat it.", ())
    lora_root: Path | None = setting("LoadAdapter may load from below this.", None)
    transport: str = setting("auto, shared_memory or bytes.", "auto")
    lend_cores: bool = setting(
        "On CPU, whether a worker with work uses the cores of idle ones.", True
    )
    run_dir: Path | None = setting("Keep sockets and logs here; default: a private one.", None)
    ask: str | None = setting("Ask this once everything is ready.", None)
    start_timeout_s: float = setting("Give up after this long.", 600.0)
    grace_s: float = setting("How long open requests may finish.", 30.0)

    def __post_init__(self) -> None:
        check_log_settings(self.log_level, self.log_format)
        for name, most in (("prefill_workers", 64), ("decode_workers", 64), ("routers", 16)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be 1 to {most}, got {getattr(self, name)}")
        parse_adapters(self.lora)
        if is_address(self.http_address):
            check_address(str(self.http_address))
        if is_address(self.metrics_address):
            check_host_port(str(self.metrics_address), "metrics_address")
        if self.run_dir is not None:
            check_socket_folder(self.run_dir, "run_dir")
        if self.routers > 1 and (self.address or "").startswith("unix:"):
            raise ValueError(f"routers must be 1 at {self.address}: only a port can be shared")
