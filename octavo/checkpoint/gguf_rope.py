"""Rope scaling of a GGUF file, in the words of config.json.

`transformers` drops these keys and the tensor when it reads a GGUF, and the model then talks
nonsense on long prompts only.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.errors import UnsupportedModel
from octavo.checkpoint.gguf_metadata import GgufMetadata
from octavo.checkpoint.rope_config import DEFAULT_THETA

# Of Llama 3.1 and later; the file holds the factors computed from them, but not these.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_CONTEXT = 1.0, 4.0, 8192


def gguf_rope(metadata: GgufMetadata, factors: Any | None) -> dict[str, object]:
    """rope_parameters; factors is the file's rope_freqs.weight, if it has one.

    Raises:
        UnsupportedModel: a scaling that Octavo does not compute, named by its key or tensor.
    """
    theta = metadata.optional_number("rope.freq_base") or DEFAULT_THETA
    if factors is not None:
        return _llama3(metadata, np.asarray(factors.data, dtype=np.float32).reshape(-1), theta)
    type_key = metadata.key("rope.scaling.type")
    factor = metadata.optional_number("rope.scaling.factor") or metadata.optional_number(
        "rope.scale_linear"
    )
    rope_type = metadata.fields.string(type_key, "linear" if factor else "none")
    if rope_type == "none" or (rope_type == "linear" and factor in (None, 0.0, 1.0)):
        return {"rope_type": "default", "rope_theta": theta}
    if rope_type == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if rope_type != "yarn":
        raise UnsupportedModel(f"{metadata.where}: {type_key} {rope_type!r} is not supported")
    return _yarn(metadata, factor, theta)


def _yarn(metadata: GgufMetadata, factor: float | None, theta: float) -> dict[str, object]:
    for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier"):
        if metadata.optional_number(f"rope.scaling.{name}") not in (None, 1.0):
            key = metadata.key(f"rope.scaling.{name}")
            raise UnsupportedModel(f"{metadata.where}: {key} is not supported")
    rope: dict[str, object] = {"rope_type": "yarn", "rope_theta": theta, "factor": factor}
    original = metadata.optional_integer("rope.scaling.original_context_length")
    if original is not None:
        rope["original_max_position_embeddings"] = original
    for name in ("beta_fast", "beta_slow"):
        value = metadata.optional_number(f"rope.scaling.yarn_{name}")
        if value is not None:
            rope[name] = value
    return rope


def _llama3(
    metadata: GgufMetadata, factors: npt.NDArray[np.float32], theta: float
) -> dict[str, object]:
    """The llama3 parameters whose factors these are; checked, since the file does not name them."""
    context = metadata.optional_integer("rope.scaling.original_context_length") or LLAMA3_CONTEXT
    factor = float(factors.max())
    dim = 2 * len(factors)
    wave = 2 * math.pi * theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    smooth = (context / wave - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
    blended = 1 / ((1 - smooth) / factor + smooth)
    expected = np.where(smooth > 1, 1.0, np.where(smooth < 0, factor, blended))
    if not np.allclose(factors, expected, rtol=1e-4):
        raise UnsupportedModel(
            f"{metadata.where}: tensor rope_freqs.weight holds factors of no known rope type"
        )
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": context,
    }
