"""From a model folder to a `DecoderModel`: tensors are mapped, cast, fused and packed one by one.

safetensors --map--> [N, K] as stored --cast, concatenate--> one matrix per product --pack--> Linear
                                      --concatenate--> quantise, if weights are to be smaller ---^
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from octavo.checkpoint.config import ModelConfig, load_config
from octavo.checkpoint.errors import CheckpointError
from octavo.checkpoint.weights import WeightFiles
from octavo.engine.models.decoder import DecoderModel, DecoderWeights
from octavo.engine.models.kv_scales import AttentionWeights, scale_for_fp8
from octavo.engine.models.layer import LayerWeights
from octavo.engine.models.precision import Precisions
from octavo.engine.models.tensor_names import (
    EMBED,
    FINAL_NORM,
    HEAD,
    check_tensors,
    layer_name,
)
from octavo.kernels.select import Kernels, Linear, packer_for


def load_model(
    path: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
    quantization: str | None = None,
    kv_dtype: torch.dtype | None = None,
) -> DecoderModel:
    """Load the folder's model onto device, its weights as dtype, those of products quantised.

    Args:
        kv_dtype: of the cache that it will be run with, dtype unless said.

    Raises:
        UnsupportedQuantization: device has no such products.
        UnsupportedModel: config.json asks for something Octavo does not compute.
        CheckpointError: a tensor is missing, has no place in the model, or has the wrong shape.
    """
    config = load_config(path)
    files = WeightFiles(path)
    check_tensors(config, files)
    try:
        precisions = Precisions(quantization, files)
        is_fp8 = kv_dtype == torch.float8_e4m3fn
        weights = _Loader(config, files, dtype, device, kernels, precisions, is_fp8).load()
    finally:
        files.close()
    return DecoderModel(config, weights, kernels, device)


@dataclass(frozen=True, slots=True)
class _Product:
    """A linear layer as loaded."""

    weight: torch.Tensor  # [N, K]
    bias: torch.Tensor | None  # [N]
    precision: str | None  # what its weights are to be kept in; None: as they are


@dataclass(frozen=True, slots=True)
class _Loader:
    """Reads one checkpoint; gone once the model stands."""

    config: ModelConfig
    files: WeightFiles
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    precisions: Precisions
    has_fp8_cache: bool

    @torch.inference_mode()
    def load(self) -> DecoderWeights:
        embed = self._tensor(EMBED)
        return DecoderWeights(
            embed=embed,
            layers=[self._layer(index) for index in range(self.config.num_layers)],
            norm=self._tensor(FINAL_NORM),
            head=self._head(embed),
        )

    def _layer(self, index: int) -> LayerWeights:
        config = self.config
        head_norms = None
        if config.qk_norm:
            head_norms = (
                self._tensor(layer_name(index, "self_attn.q_norm.weight")),
                self._tensor(layer_name(index, "self_attn.k_norm.weight")),
            )
        attention, mlp = layer_name(index, "self_attn."), layer_name(index, "mlp.")
        qkv = self._product([f"{attention}{x}_proj" for x in "qkv"], config.qkv_bias)
        o = self._product([f"{attention}o_proj"], config.o_bias)
        input_norm = self._tensor(layer_name(index, "input_layernorm.weight"))
        if self.has_fp8_cache:
            weights = AttentionWeights(input_norm, qkv.weight, qkv.bias, head_norms, o.weight)
            scale_for_fp8(weights, config)
        return LayerWeights(
            input_norm=input_norm,
            qkv=self._pack(qkv),
            head_norms=head_norms,
            o=self._pack(o),
            post_attention_norm=self._tensor(layer_name(index, "post_attention_layernorm.weight")),
            gate_up=self._linear([f"{mlp}gate_proj", f"{mlp}up_proj"], config.mlp_bias),
            down=self._linear([f"{mlp}down_proj"], config.mlp_bias),
        )

    def _linear(self, names: list[str], has_bias: bool) -> Linear:
        """One product for all names, their outputs side by side."""
        return self._pack(self._product(names, has_bias))

    def _pack(self, product: _Product) -> Linear:
        pack = packer_for(self.kernels, self.device, self.dtype, product.precision)
        return pack(product.weight, product.bias)

    def _product(self, names: list[str], has_bias: bool) -> _Product:
        """What is quantised is not rounded to dtype before."""
        weights = [f"{name}.weight" for name in names]
        bias = self._joined([f"{name}.bias" for name in names]) if has_bias else None
        precision = self.precisions.of(weights)
        return _Product(self._matrix(weights, precision), bias, precision)

    def _matrix(self, names: list[str], precision: str | None) -> torch.Tensor:
        return self._joined(names, None if precision is None else self.files.load(names[0]).dtype)

    def _joined(self, names: list[str], dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensors one below the other, written straight into their place."""
        shapes = [self.files.tensors[name].shape for name in names]
        num_rows = sum(shape[0] for shape in shapes)
        shape = (num_rows, *shapes[0][1:])
        joined = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            joined[start : start + shape[0]].copy_(self.files.load(name))
            start += shape[0]
        return joined

    def _tensor(self, name: str) -> torch.Tensor:
        """A copy of its own: the mapped file may be replaced while the model runs."""
        return self._joined([name])

    def _head(self, embed: torch.Tensor) -> Linear:
        name = EMBED if self.config.tie_word_embeddings else HEAD
        if name == EMBED:
            self._check_tie()
        precision = self.precisions.of_head(name)
        is_embed = name == EMBED and precision is None
        weight = embed if is_embed else self._matrix([name], precision)
        return self._pack(_Product(weight, None, precision))

    def _check_tie(self) -> None:
        if HEAD in self.files.tensors and not torch.equal(
            self.files.load(HEAD), self.files.load(EMBED)
        ):
            raise CheckpointError(
                f"config.json ties the embeddings, but tensor {HEAD} differs from {EMBED}"
            )
