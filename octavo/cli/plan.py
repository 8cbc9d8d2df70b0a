"""Every process of `octavo up` with its arguments.

All listen on unix sockets in one private folder; routers have a port, too.
"""

from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoint.adapter_config import parse_adapters
from octavo.cli.addresses import ADDRESS_FILE, Addresses, choose_address, socket_address
from octavo.cli.child import Child
from octavo.cli.gpus import count_gpus, gpu_environment
from octavo.cli.metrics_addresses import SUFFIX, metrics_arguments
from octavo.cli.up_config import UpConfig
from octavo.engine.core_set import (
    CoreSet,
    allowed_cores,
    format_cores,
    physical_cores,
    share_cores,
    usable_cores,
)
from octavo.router.config import NO_ADDRESS

CORE_BOARD = "cores.board"


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one service: its settings, its model's folder, and the folder of sockets and logs."""

    config: UpConfig
    model: Path
    folder: Path
    redis_url: str | None

    def workers(self) -> list[Child]:
        """Prefill workers first."""
        names = self._worker_names("prefill") + self._worker_names("decode")
        num_gpus = 0 if self.config.device == "cpu" else count_gpus()
        shares = worker_cores(self.config, num_gpus)
        children = []
        for index, (name, cores) in enumerate(zip(names, shares, strict=True)):
            arguments = [f"{name.partition('-')[0]}-worker", *self._worker_arguments(name)]
            arguments += core_arguments(self.config, shares, cores, self.folder)
            arguments += self._metrics_arguments(index, name)
            env = self._environment() | gpu_environment(index, len(names), num_gpus)
            children.append(Child(name, arguments, self._log(name), env, cores))
        return children

    def first_router(self, http_address: str) -> Child:
        """Takes the addresses, which `address_file` tells once it has them."""
        router = self._router(0, choose_address(self.config.address), http_address)
        router.arguments += ["--address-file", str(self.address_file)]
        return router

    def other_routers(self, addresses: Addresses) -> list[Child]:
        """They share the addresses of the first."""
        http_address = addresses.http or NO_ADDRESS
        indices = range(1, self.config.routers)
        return [self._router(index, addresses.grpc, http_address) for index in indices]

    @property
    def address_file(self) -> Path:
        return self.folder / ADDRESS_FILE

    def _worker_names(self, role: str) -> list[str]:
        count = getattr(self.config, f"{role}_workers")
        return [f"{role}-{index}" for index in range(count)]

    def _worker_arguments(self, name: str) -> list[str]:
        config = self.config
        arguments = ["--model", str(self.model), "--worker-id", name]
        arguments += ["--listen-address", socket_address(self.folder, name)]
        for setting in ("dtype", "device", "kv_dtype", "transport"):
            arguments += [f"--{setting.replace('_', '-')}", getattr(config, setting)]
        if config.quantization is not None:
            arguments += ["--quantization", config.quantization]
        for adapter, path in parse_adapters(config.lora).items():
            arguments += ["--lora", f"{adapter}={path.absolute()}"]
        return arguments + self._lora_root()

    def _router(self, index: int, address: str, http_address: str) -> Child:
        is_alone = self.config.routers == 1
        name = "router" if is_alone else f"router-{index}"
        arguments = ["router", "--listen-address", address, "--http-address", http_address]
        arguments += ["--private-address", socket_address(self.folder, name)]
        arguments += [] if is_alone else ["--shares-port"]
        arguments += self._router_arguments()
        num_workers = self.config.prefill_workers + self.config.decode_workers
        arguments += self._metrics_arguments(num_workers + index, name)
        return Child(name, arguments, self._log(name), self._environment())

    def _router_arguments(self) -> list[str]:
        config = self.config
        arguments = ["--model", str(self.model)]
        arguments += ["--served-model-name", Path(config.model).name.removesuffix(".gguf")]
        for role in ("prefill", "decode"):
            for name in self._worker_names(role):
                arguments += [f"--{role}-address", socket_address(self.folder, name)]
        arguments += ["--cache-secret-file", str(self.folder / "cache-secret")]
        return arguments + self._lora_root()

    def _metrics_arguments(self, number: int, name: str) -> list[str]:
        file = self.folder / f"{name}{SUFFIX}"
        return metrics_arguments(self.config.metrics_address, number, file)

    def _lora_root(self) -> list[str]:
        root = self.config.lora_root
        return [] if root is None else ["--lora-root", str(root.absolute())]

    def _environment(self) -> dict[str, str]:
        """By environment goes the URL, too: anyone can read a command line, and a password there.

        One thread that sleeps while it waits: spinning threads on shared cores cost tenfold.
        """
        config = self.config
        env = {
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            "TOKENIZERS_PARALLELISM": "false",
            "OCTAVO_DRAIN_TIMEOUT_S": str(config.grace_s),
            "OCTAVO_LOG_LEVEL": config.log_level,
            "OCTAVO_LOG_FORMAT": config.log_format,
        }
        return env | ({"OCTAVO_REDIS_URL": self.redis_url} if self.redis_url else {})

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def worker_cores(config: UpConfig, num_gpus: int) -> list[CoreSet]:
    """Which cores are each worker's own, prefill workers first; none where GPUs compute."""
    allowed = allowed_cores() if num_gpus == 0 else ()
    num_workers = config.prefill_workers + config.decode_workers
    physical = usable_cores(physical_cores(allowed))
    cores = physical if len(physical) >= num_workers else allowed
    return share_cores(cores, config.prefill_workers, config.decode_workers)


def core_arguments(
    config: UpConfig, shares: list[CoreSet], own: CoreSet, folder: Path
) -> list[str]:
    """What one worker is told of its cores, and of those it may borrow."""
    if not own:
        return []
    arguments = ["--cpu-cores", format_cores(own)]
    is_shared = sum(map(len, shares)) > len(set().union(*shares))  # by workers that take turns
    if config.lend_cores and not is_shared:
        arguments += ["--core-board", str(folder / CORE_BOARD)]
    return arguments
