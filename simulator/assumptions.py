"""Reads assumptions.toml: devices, models and prices as data."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.cost import RooflineCost
from simulator.overhead import Overhead
from simulator.run import ServiceSpec

PATH = Path(__file__).with_name("assumptions.toml")
DTYPE_BYTES = 2  # bfloat16 weights and KV


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The file's tables."""

    device: dict[str, Any]
    models: dict[str, dict[str, Any]]  # by name
    network: dict[str, float]
    router: dict[str, float]
    redis: dict[str, float]
    workload: dict[str, int]

    @classmethod
    def read(cls, path: Path = PATH) -> "Assumptions":
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(
            device=tables["device"],
            models={model["name"]: model for model in tables["model"]},
            network=tables["network"],
            router=tables["router"],
            redis=tables["redis"],
            workload=tables["workload"],
        )

    def kv_token_bytes(self, model: str) -> float:
        facts = self.models[model]
        return float(2 * facts["layers"] * facts["kv_heads"] * facts["head_dim"] * DTYPE_BYTES)

    def cost(self, model: str) -> RooflineCost:
        """One worker's device, or devices that share each step."""
        facts, device = self.models[model], self.device
        speed = facts["devices"]
        if speed > 1:
            speed *= device["tensor_parallel_efficiency"]
        return RooflineCost(
            weight_bytes=facts["parameters"] * DTYPE_BYTES,
            num_parameters=facts["parameters"],
            kv_token_bytes=self.kv_token_bytes(model),
            pair_flop=4.0 * facts["layers"] * facts["heads"] * facts["head_dim"],
            bytes_per_s=device["bandwidth_bytes_per_s"] * device["bandwidth_efficiency"] * speed,
            flop_per_s=device["peak_flop_per_s"] * device["flop_efficiency"] * speed,
            step_s=device["step_s"],
        )

    def spec(self, model: str, num_prefills: int, num_decodes: int, seed: int) -> ServiceSpec:
        facts, device, work = self.models[model], self.device, self.workload
        memory = device["memory_bytes"] * device["memory_share"] * facts["devices"]
        block_bytes = self.kv_token_bytes(model) * work["block_size"]
        num_blocks = int((memory - facts["parameters"] * DTYPE_BYTES) / block_bytes)
        link = self.network["link_bytes_per_s"] * self.network["link_efficiency"]
        return ServiceSpec(
            num_prefills=num_prefills,
            num_decodes=num_decodes,
            cost=self.cost(model),
            block_size=work["block_size"],
            block_bytes=block_bytes,
            num_blocks=num_blocks,
            max_num_seqs=work["max_num_seqs"],
            prefill_step_tokens=work["step_tokens"],
            decode_step_tokens=work["step_tokens"],
            overhead=Overhead(
                request_s=self.network["request_s"],
                wire_s=self.network["hand_off_s"],
                wire_s_per_byte=1 / link,
            ),
            seed=seed,
        )
