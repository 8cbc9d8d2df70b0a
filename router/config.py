"""Settings of a router, read once in `__main__` and checked here."""

from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

from octavo.logs import check_log_settings
from octavo.rpc.exposure import NO_ADDRESS as NO_ADDRESS
from octavo.rpc.exposure import check_host_port, check_plaintext, is_address
from octavo.rpc.tls import TlsFiles, files_of
from octavo.text.tool_calls import AUTO, check_format_name


def setting(help_text: str, *, default: Any = MISSING) -> Any:
    """A field that `octavo router` offers as an option with this help."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """How one router listens, finds workers, and bounds what it takes on."""

    model: str = setting(
        "A folder, a GGUF file or a hub id; only config, tokenizer and templates are read."
    )
    served_model_name: str | None = setting(
        "What clients call the model; default: the last part of its name.",
        default=None,
    )
    listen_address: str = setting(
        "Where clients connect; of several, with commas, the first that can be had.",
        default="127.0.0.1:50051",
    )
    shares_port: bool = setting(
        "Share the port with other routers that say so, too; the kernel spreads connections.",
        default=False,
    )
    http_address: str | None = setting(
        "Where HTTP clients connect, as gRPC's; needs octavo[http]. Default, and none: nowhere.",
        default=None,
    )
    address_file: Path | None = setting(
        "Write where it listens here, as JSON; of routers that share a port the first one does.",
        default=None,
    )
    metrics_address: str | None = setting(
        "Where Prometheus reads, as host:port; default: /metrics of the HTTP port alone.",
        default=None,
    )
    metrics_address_file: Path | None = setting(
        "Write where that is here, once it is open.",
        default=None,
    )
    private_address: str | None = setting(
        "One more address to listen on, where this router alone is reached.",
        default=None,
    )
    tls_cert_file: Path | None = setting(
        "PEM certificate of listen_address; a renewed one counts without a restart.",
        default=None,
    )
    tls_key_file: Path | None = setting(
        "PEM key of tls_cert_file.",
        default=None,
    )
    tls_client_ca_file: Path | None = setting(
        "Clients must show a certificate of this CA (mTLS).",
        default=None,
    )
    api_key_file: Path | None = setting(
        "Keys of 16 bytes or more that clients must send, one a line; read again when it changes.",
        default=None,
    )
    internal_tls_dir: Path | None = setting(
        "Folder of tls.crt, tls.key and ca.crt for mTLS with workers; all roles need one.",
        default=None,
    )
    insecure: bool = setting(
        "Serve without encryption beyond this machine.",
        default=False,
    )
    prefill_address: tuple[str, ...] = setting(
        "host:port, unix:path or dns:///name:port; repeat it, or use commas.",
        default=(),
    )
    decode_address: tuple[str, ...] = setting(
        "As --prefill-address; both add up with the workers that Redis lists.",
        default=(),
    )
    redis_url: str | None = setting(
        "Redis that lists workers and their blocks.",
        default=None,
    )
    cache_secret_file: str | None = setting(
        "32 bytes or more that key the cached blocks; created with mode 0600 when absent.",
        default=None,
    )
    max_queued_tokens: int = setting(
        "Prompt tokens at most of requests that wait for their first token.",
        default=262_144,
    )
    max_request_s: float = setting(
        "Ends a request whose deadline is later, or that has none.",
        default=600.0,
    )
    stream_interval_s: float = setting(
        "Shortest time between two messages of a stream; tokens in between share one. 0: none.",
        default=0.005,
    )
    slow_reader_s: float = setting(
        "Ends a request whose client takes nothing for so long.",
        default=30.0,
    )
    drain_timeout_s: float = setting(
        "How long open requests may finish after SIGTERM.",
        default=30.0,
    )
    lookup_budget_s: float = setting(
        "Longest wait for the prefix index; placement goes by load alone after it.",
        default=0.020,
    )
    stuck_after_s: float = setting(
        "A worker with work and no step for so long is stuck.",
        default=5.0,
    )
    load_interval_s: float = setting(
        "Shortest time between two load samples of a worker.",
        default=0.05,
    )
    dns_interval_s: float = setting(
        "How often dns:/// names are resolved again.",
        default=5.0,
    )
    decode_sequence_weight: float = setting(
        "What a running sequence costs a decode worker, in blocks.",
        default=4.0,
    )
    local_prefill_max_tokens: int | None = setting(
        "Lowers the decode workers' limit on prompt tails they compute themselves; 0: none.",
        default=None,
    )

    lora_root: str | None = setting(
        "Adapters below this folder of the workers may be loaded by LoadAdapter; default: none.",
        default=None,
    )
    log_level: str = setting(
        "debug, info, warning or error.",
        default="info",
    )
    log_format: str = setting(
        "text, or json for an object a line.",
        default="text",
    )
    log_prompts: bool = setting(
        "Write prompts to the log at level debug; they are never written otherwise.",
        default=False,
    )
    tool_call_format: str = setting(
        "How tool calls are written: auto (by the chat template), hermes, llama3_json or none.",
        default=AUTO,
    )

    def __post_init__(self) -> None:
        check_format_name(self.tool_call_format)
        check_log_settings(self.log_level, self.log_format)
        if is_address(self.http_address):
            check_address(str(self.http_address))
        self._check_exposure()
        if not self.model:
            raise ValueError("model must name a folder, a GGUF file or a hub id")
        for name in (
            "max_queued_tokens",
            "max_request_s",
            "slow_reader_s",
            "lookup_budget_s",
            "stuck_after_s",
            "load_interval_s",
            "dns_interval_s",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("drain_timeout_s", "stream_interval_s", "decode_sequence_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        limit = self.local_prefill_max_tokens
        if limit is not None and limit < 0:
            raise ValueError(f"local_prefill_max_tokens must not be negative, got {limit}")

    def _check_exposure(self) -> None:
        how = "--tls-cert-file and --tls-key-file"
        if is_address(self.metrics_address):
            check_host_port(str(self.metrics_address), "metrics_address")
        for name, tls in (
            ("listen_address", self.public_tls),
            ("http_address", self.public_tls),
            ("metrics_address", self.metrics_tls),
        ):
            addresses = getattr(self, name)
            if tls is None and is_address(addresses):
                for address in split_addresses(addresses):
                    check_plaintext(address, self.insecure, how, name)

    @property
    def public_tls(self) -> TlsFiles | None:
        """Of listen_address and http_address.

        Raises:
            ValueError: a file is missing.
        """
        return files_of(self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)

    @property
    def internal_tls(self) -> TlsFiles | None:
        """What this router shows to workers, and asks of them."""
        return TlsFiles.in_folder(self.internal_tls_dir) if self.internal_tls_dir else None

    @property
    def metrics_tls(self) -> TlsFiles | None:
        """Of metrics_address: what workers' metrics have, else what clients see."""
        return self.internal_tls or self.public_tls

    @property
    def serves_http(self) -> bool:
        return is_address(self.http_address)

    @property
    def serves_metrics(self) -> bool:
        return is_address(self.metrics_address)

    @property
    def model_name(self) -> str:
        """The name clients use."""
        if self.served_model_name:
            return self.served_model_name
        return self.model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")


def split_addresses(addresses: str) -> list[str]:
    """Those of a list with commas; a unix socket stands alone."""
    return [addresses] if addresses.startswith("unix:") else addresses.split(",")


def check_address(addresses: str) -> None:
    """Raise ValueError unless HTTP could be served there."""
    for address in split_addresses(addresses):
        check_host_port(address, "http_address")
