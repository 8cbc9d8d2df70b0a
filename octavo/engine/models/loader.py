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
from octavo.engine.models.decoder import DecoderModel, DecoderWeights, LayerWeights, Linear
from octavo.engine.models.precision import Precisions
from octavo.engine.models.tensor_names import (
    EMBED,
    FINAL_NORM,
    HEAD,
    check_tensors,
    layer_name,
)
from octavo.kernels.select import Kernels, PackLinear, packer_for


def load_model(
    path: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
    quantization: str | None = None,
) -> DecoderModel:
    """Load the folder's model onto device, its weights as dtype, those of products quantised.

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
        weights = _Loader(config, files, dtype, device, kernels, precisions).load()
    finally:
        files.close()
    return DecoderModel(config, weights, kernels, device)


@dataclass(frozen=True, slots=True)
class _Loader:
    """Reads one checkpoint; gone once the model stands."""

    config: ModelConfig
    files: WeightFiles
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    precisions: Precisions

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
        q_norm = k_norm = None
        if config.qk_norm:
            q_norm = self._tensor(layer_name(index, "self_attn.q_norm.weight"))
            k_norm = self._tensor(layer_name(index, "self_attn.k_norm.weight"))
        attention, mlp = layer_name(index, "self_attn."), layer_name(index, "mlp.")
        return LayerWeights(
            input_norm=self._tensor(layer_name(index, "input_layernorm.weight")),
            qkv=self._linear([f"{attention}{x}_proj" for x in "qkv"], config.qkv_bias),
            q_norm=q_norm,
            k_norm=k_norm,
            o=self._linear([f"{attention}o_proj"], config.o_bias),
            post_attention_norm=self._tensor(layer_name(index, "post_attention_layernorm.weight")),
            gate_up=self._linear([f"{mlp}gate_proj", f"{mlp}up_proj"], config.mlp_bias),
            down=self._linear([f"{mlp}down_proj"], config.mlp_bias),
        )

    def _linear(self, names: list[str], has_bias: bool) -> Linear:
        """One product for all names, their outputs side by side."""
        weights = [f"{name}.weight" for name in names]
        bias = self._joined([f"{name}.bias" for name in names]) if has_bias else None
        precision = self.precisions.of(weights)
        return self._packer(precision)(self._product(weights, precision), bias)

    def _packer(self, precision: str | None) -> PackLinear:
        return packer_for(self.kernels, self.device, self.dtype, precision)

    def _product(self, names: list[str], precision: str | None) -> torch.Tensor:
        """A product's matrix: what is quantised is not rounded to dtype before."""
        stored = self.files.load(names[0]).dtype
        return self._joined(names, self.dtype if precision is None else stored)

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
        weight = embed if is_embed else self._product([name], precision)
        return self._packer(precision)(weight, None)

    def _check_tie(self) -> None:
        if HEAD in self.files.tensors and not torch.equal(
            self.files.load(HEAD), self.files.load(EMBED)
        ):
            raise CheckpointError(
                f"config.json ties the embeddings, but tensor {HEAD} differs from {EMBED}"
            )
