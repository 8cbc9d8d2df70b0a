"""Which tensors a LoRA adapter holds, checked against the model before any of it is used.

base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight  [rank, in]
base_model.model.model.layers.3.self_attn.q_proj.lora_B.weight  [out, rank]
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from octavo.checkpoint.adapter_config import ADAPTER_WEIGHTS, AdapterConfig
from octavo.checkpoint.config import ModelConfig
from octavo.checkpoint.errors import CheckpointError, UnsupportedAdapter
from octavo.engine.models.tensor_names import expected_shapes, layer_name

MODULES = (
    *(f"self_attn.{x}_proj" for x in "qkvo"),
    *(f"mlp.{x}_proj" for x in ("gate", "up", "down")),
)
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_FINGERPRINT_BYTES = 16
_HEADER_BYTES = 16 << 20  # more than any adapter's


@dataclass(frozen=True, slots=True)
class Target:
    """One module's tensors."""

    a: torch.Tensor  # [rank, in]
    b: torch.Tensor  # [out, rank]
    scale: float


def read_targets(
    path: Path, config: AdapterConfig, model: ModelConfig, max_rank: int
) -> dict[str, Target]:
    """Targets by module, as model.layers.3.self_attn.q_proj.

    Raises:
        UnsupportedAdapter: it does not fit the model or the limit; the message names the tensor.
        CheckpointError: the file is missing, damaged, or contradicts its config.
    """
    file = path / ADAPTER_WEIGHTS
    shapes = _module_shapes(model)
    largest = max(config.rank, *config.rank_pattern.values(), 0)
    if largest > max_rank:
        raise UnsupportedAdapter(
            f"{config.where}: rank {largest} is above the limit of {max_rank}; "
            "raise --max-lora-rank"
        )
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in _load(file, shapes, max_rank).items():
        module, half = _module_of(name, shapes, file)
        halves.setdefault(module, {})[half] = tensor
    if not halves:
        raise CheckpointError(f"{file} holds no tensor")
    return {
        module: _target(module, halves[module], config, shapes[module]) for module in sorted(halves)
    }


def fingerprint(targets: dict[str, Target]) -> str:
    """32 hex digits of what the adapter computes; equal for equal content, whatever its file."""
    whole = hashlib.blake2b(digest_size=_FINGERPRINT_BYTES)
    for module, target in sorted(targets.items()):
        whole.update(f"{module}\n{target.scale.hex()}\n".encode())
        for tensor in (target.a, target.b):
            whole.update(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
            whole.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def _load(file: Path, shapes: dict[str, tuple[int, ...]], max_rank: int) -> dict[str, torch.Tensor]:
    """Read at once: what is checked is what is used, should the file be replaced meanwhile."""
    most = 8 * max_rank * sum(map(sum, shapes.values())) + _HEADER_BYTES
    try:
        size = file.stat().st_size
        if size > most:
            raise UnsupportedAdapter(
                f"{file} has {size} bytes, an adapter of rank {max_rank} at most {most}"
            )
        return load(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; pickled weights are not read") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}") from error


def _module_of(name: str, shapes: dict[str, tuple[int, ...]], file: Path) -> tuple[str, str]:
    found = _NAME.fullmatch(name)
    if found is None or found[1] not in shapes:
        raise UnsupportedAdapter(
            f"{file}: the model has no place for tensor {name}; adapters may change "
            f"{', '.join(module.rpartition('.')[2] for module in MODULES)} of its layers alone: "
            "train with these target_modules, or merge the adapter into the model"
        )
    return found[1], found[2]


def _target(
    module: str, halves: dict[str, torch.Tensor], config: AdapterConfig, shape: tuple[int, ...]
) -> Target:
    rank = config.rank_of(module)
    num_out, num_in = shape
    for half, expected in (("A", (rank, num_in)), ("B", (num_out, rank))):
        name = f"{module}.lora_{half}"
        if half not in halves:
            raise CheckpointError(f"{config.where}: tensor {name} is missing")
        if tuple(halves[half].shape) != expected:
            raise UnsupportedAdapter(
                f"{config.where}: tensor {name} must have shape {expected} for this model, has "
                f"{tuple(halves[half].shape)}; was it trained on another one?"
            )
        if not halves[half].dtype.is_floating_point:
            raise UnsupportedAdapter(
                f"{config.where}: tensor {name} has dtype {halves[half].dtype}, no float"
            )
    return Target(halves["A"], halves["B"], config.scale_of(module))


def _module_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """[out, in] of each module that may be a target."""
    shapes = expected_shapes(model)
    return {
        layer_name(layer, module): shapes[layer_name(layer, f"{module}.weight")]
        for layer in range(model.num_layers)
        for module in MODULES
    }
