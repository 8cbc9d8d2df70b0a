"""The tensors of a GGUF file as one safetensors file, one at a time.

    blk.3.attn_q (Q4_1) --dequantise--> float32 --unpermute--> model.layers.3.self_attn.q_proj

F16 and BF16 tensors keep their bytes; of others, the header names the type under `gguf_types`: from
the values a packer finds the blocks again, as their extremes are among them. llama.cpp stores q and
k of the llama architecture with rotary pairs interleaved; config.json's models want halves, so
those rows are put back in order.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.errors import UnsupportedModel
from octavo.checkpoint.progress import ProgressCallback
from octavo.checkpoint.weights import GGUF_TYPES

Array = npt.NDArray[np.generic]

WHOLE_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Became part of config.json.
READ_ELSEWHERE = ("rope_freqs.weight",)
STAGE = "Converting the model"
KEPT = {"F16": ("F16", 2), "BF16": ("BF16", 2)}  # GGUF type -> safetensors dtype, bytes


@dataclass(frozen=True, slots=True)
class _Planned:
    """Where one tensor goes."""

    source: Any  # a tensor of the GGUFReader
    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


def write_tensors(
    reader: Any, permuted_heads: dict[str, int], target: Path, progress: ProgressCallback
) -> None:
    """Write every tensor of the file; permuted_heads: projection to its number of heads.

    Raises:
        UnsupportedModel: a tensor has no place in the model, or a type that cannot be read.
    """
    # Wide elements first keeps every tensor aligned in the mapped file.
    planned = sorted(_plan(reader), key=lambda tensor: (tensor.dtype != "F32", tensor.name))
    total = sum(tensor.num_bytes for tensor in planned)
    with target.open("wb") as stream:
        stream.write(_header(planned))
        done = 0
        for tensor in planned:
            progress(STAGE, done, total)
            stream.write(np.ascontiguousarray(_values(tensor, permuted_heads)).data)
            done += tensor.num_bytes
    progress(STAGE, total, total)


def hugging_face_name(name: str) -> str | None:
    """blk.0.attn_q.bias -> model.layers.0.self_attn.q_proj.bias; None: no such part is known."""
    whole = re.fullmatch(r"(\w+)\.(weight|bias)", name)
    if whole and whole[1] in WHOLE_MODEL:
        return f"{WHOLE_MODEL[whole[1]]}.{whole[2]}"
    part = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if part and part[2] in PER_LAYER:
        return f"model.layers.{part[1]}.{PER_LAYER[part[2]]}.{part[3]}"
    return None


def _plan(reader: Any) -> Iterator[_Planned]:
    for source in reader.tensors:
        if source.name in READ_ELSEWHERE:
            continue
        name = hugging_face_name(source.name)
        if name is None:
            raise UnsupportedModel(f"the GGUF tensor {source.name} is not supported")
        shape = tuple(int(size) for size in reversed(source.shape))  # GGUF: innermost first
        dtype, item_bytes = KEPT.get(source.tensor_type.name, ("F32", 4))
        yield _Planned(source, name, shape, dtype, int(np.prod(shape)) * item_bytes)


def _header(planned: list[_Planned]) -> bytes:
    types = {tensor.name: tensor.source.tensor_type.name for tensor in planned}
    types = {name: kind for name, kind in types.items() if kind not in ("F32", *KEPT)}
    header: dict[str, object] = {"__metadata__": {"format": "pt", GGUF_TYPES: json.dumps(types)}}
    start = 0
    for tensor in planned:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, start + tensor.num_bytes],
        }
        start += tensor.num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _values(tensor: _Planned, permuted_heads: dict[str, int]) -> Array:
    """The tensor's rows; those of a kept type as raw bytes, [rows, bytes of a row]."""
    from gguf import dequantize

    source = tensor.source
    if source.tensor_type.name in KEPT:
        values = np.asarray(source.data).view(np.uint8)
        values = values.reshape(tensor.shape[0], -1)
    else:
        try:
            values = np.asarray(dequantize(source.data, source.tensor_type), dtype=np.float32)
        except NotImplementedError:
            raise UnsupportedModel(
                f"the GGUF tensor {source.name} has the type {source.tensor_type.name}, "
                "which cannot be dequantised"
            ) from None
    num_heads = permuted_heads.get(tensor.name.split(".")[-2])
    return values if num_heads is None else _unpermute(values, num_heads)


def _unpermute(values: Array, num_heads: int) -> Array:
    """Rows of each head from (pair, half) order to (half, pair) order."""
    rest = values.shape[1:]
    paired = values.reshape(num_heads, -1, 2, *rest)
    return paired.swapaxes(1, 2).reshape(values.shape)
