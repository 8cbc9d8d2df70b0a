"""What a LoRA adapter is: adapter_config.json as PEFT writes it, and where its files may lie.

    adapter_config.json          rank and scale of each module
    adapter_model.safetensors    lora_A [rank, in], lora_B [out, rank] of each module, and no pickle

    y = W x  becomes  W x + scale * B A x,  scale = alpha / rank, or alpha / sqrt(rank) (rslora)

A field that changes this and that Octavo does not know is refused by name, before a weight is read.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoint.errors import CheckpointError, UnsupportedAdapter
from octavo.checkpoint.fields import Fields, read_fields

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MAX_NAME_BYTES = 128

# Read below, or of training alone. Others must be unset: they may change what the tensors mean.
_KNOWN = {
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
}
_ADVICE = {
    "use_dora": "train without DoRA, or merge the adapter into the model",
    "modules_to_save": "it replaces whole modules; merge the adapter into the model",
    "lora_bias": "train with lora_bias=False, or merge the adapter into the model",
    "trainable_token_indices": "it changes embeddings; merge the adapter into the model",
}
# Those that leave the model's own weights as they are; the others (PiSSA, OLoRA, ...) train beside
# changed ones.
_INITS = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Ranks and scales by module."""

    where: str
    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """module: as in the model, e.g. model.layers.0.self_attn.q_proj."""
        return self.rank_pattern.get(_matching(self.rank_pattern, module), self.rank)

    def scale_of(self, module: str) -> float:
        """What B A x is multiplied by."""
        alpha = self.alpha_pattern.get(_matching(self.alpha_pattern, module), self.alpha)
        rank = self.rank_of(module)
        return alpha / rank**0.5 if self.use_rslora else alpha / rank


def load_adapter_config(path: Path) -> AdapterConfig:
    """Read the folder's adapter_config.json.

    Raises:
        UnsupportedAdapter: it is no LoRA, or of a kind that Octavo does not compute.
        CheckpointError: the file or a field is missing or wrong.
    """
    fields = read_fields(path / ADAPTER_CONFIG)
    _refuse_unknown(fields)
    ranks, alphas = fields.nested("rank_pattern"), fields.nested("alpha_pattern")
    config = AdapterConfig(
        where=fields.where,
        rank=fields.integer("r"),
        alpha=fields.number("lora_alpha"),
        use_rslora=fields.boolean("use_rslora", False),
        rank_pattern={name: ranks.integer(name) for name in ranks.values} if ranks else {},
        alpha_pattern={name: alphas.number(name) for name in alphas.values} if alphas else {},
    )
    for rank in (config.rank, *config.rank_pattern.values()):
        if rank < 1:
            raise CheckpointError(f"{fields.where}: ranks must be positive, got {rank}")
    return config


def check_adapter_name(name: str) -> None:
    """Raise ValueError unless an adapter may be called so."""
    if not (name.isprintable() and "=" not in name and 1 <= len(name.encode()) <= MAX_NAME_BYTES):
        raise ValueError(
            f"an adapter's name must be 1 to {MAX_NAME_BYTES} printable bytes without =, "
            f"got {name[:MAX_NAME_BYTES]!r}"
        )


def parse_adapters(settings: Iterable[str]) -> dict[str, Path]:
    """Names and folders of NAME=PATH settings. Raises ValueError, naming the setting."""
    found: dict[str, Path] = {}
    for setting in settings:
        name, separator, path = setting.partition("=")
        if not separator or not path:
            raise ValueError(f"lora must be NAME=PATH, got {setting!r}")
        check_adapter_name(name)
        if name in found:
            raise ValueError(f"lora names {name!r} twice")
        found[name] = Path(path)
    return found


def _refuse_unknown(fields: Fields) -> None:
    kind = fields.string("peft_type", "LORA")
    if kind != "LORA":
        raise UnsupportedAdapter(f"{fields.where}: peft_type {kind} is not served; LORA is")
    bias = fields.string("bias", "none")
    if bias != "none":
        raise UnsupportedAdapter(
            f"{fields.where}: bias {bias!r} is not served; train with bias='none', or merge the "
            "adapter into the model"
        )
    init = fields.values.get("init_lora_weights")
    if init not in _INITS:
        raise UnsupportedAdapter(
            f"{fields.where}: init_lora_weights {init!r} changes the model's own weights; convert "
            "it to a plain LoRA (save_pretrained with path_initial_model_for_weight_conversion)"
        )
    for name, value in fields.values.items():
        if name not in _KNOWN and value:
            advice = _ADVICE.get(name, "unset it, or merge the adapter into the model")
            raise UnsupportedAdapter(f"{fields.where}: {name} is not served; {advice}")


def _matching(patterns: Iterable[str], module: str) -> str:
    """The first pattern that names the module, the way PEFT looks it up; "" if none does."""
    for pattern in patterns:
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return pattern
        except re.error as error:
            raise CheckpointError(
                f"the pattern {pattern!r} of a module is none: {error}"
            ) from error
    return ""
