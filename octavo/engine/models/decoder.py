"""The forward pass of the Llama family over a paged KV pool.

    token_ids --embed--> residual [T, H]
    each layer:  norm -> qkv -> (q, k norm) rotary store_kv -> attention -> o  --------+
                 norm -> gate, up -> silu * -> down  ----------------------------------+-> residual
    rows of logit_rows --norm--> head --> logits [num_sampled, vocab_size]

What costs time is one of the injected kernels; what is left here is their order. A step is its
batch and the angles of its positions; from there on nothing but kernels and views of their results
takes part where every row is a decode row (recorded_step.py replays such steps).
"""

from dataclasses import dataclass

import torch

from octavo.checkpoint.config import ModelConfig
from octavo.engine.batch import Batch
from octavo.engine.models.adapted import adapted_layers
from octavo.engine.models.adapter_loader import AdapterLoader
from octavo.engine.models.layer import LayerWeights
from octavo.engine.models.rope import Rotary
from octavo.kernels.select import Kernels, Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embed: torch.Tensor  # [vocab_size, H]
    layers: list[LayerWeights]
    norm: torch.Tensor  # [H]
    head: Linear  # H -> vocab_size


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers of one step share: the batch, its angles, and its prefill part."""

    batch: Batch
    cos: torch.Tensor  # [T, R] float32
    sin: torch.Tensor  # [T, R] float32
    prefill_tables: torch.Tensor  # [S - num_decodes, max_blocks]
    prefill_lens: torch.Tensor  # [S - num_decodes]
    prefill_start: torch.Tensor  # [S - num_decodes + 1], from 0

    @classmethod
    def of(cls, batch: Batch, cos: torch.Tensor, sin: torch.Tensor) -> "Step":
        start = batch.num_decodes
        return cls(
            batch=batch,
            cos=cos,
            sin=sin,
            prefill_tables=batch.block_tables[start:],
            prefill_lens=batch.seq_lens[start:],
            prefill_start=batch.query_start[start:] - start,
        )

    @property
    def samples_all(self) -> bool:
        """Whether every row is a decode row and asked for: logit_rows are 0, 1, 2, .. then."""
        batch = self.batch
        return batch.num_decodes == len(batch.token_ids) == len(batch.logit_rows)


class DecoderModel:
    """A loaded model; stateless between steps, all state is in the KV pool."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        kernels: Kernels,
        device: torch.device,
    ) -> None:
        self.config = config
        self._weights = weights
        self._kernels = kernels
        self._rotary = Rotary(config.rope, config.head_dim, device)
        self._scale = config.head_dim**-0.5
        self._device = device

    def adapter_loader(
        self, dtype: torch.dtype, max_rank: int, *, has_fp8_cache: bool = False
    ) -> AdapterLoader:
        """What reads adapters for this model, whose rows are of dtype."""
        return AdapterLoader(
            self.config, dtype, self._device, self._kernels, max_rank, has_fp8_cache
        )

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: torch.Tensor) -> torch.Tensor:
        """Store the step's KV and return the logits of its logit_rows.

        kv: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim].
        Returns [num_sampled, vocab_size] in the dtype of the residual.
        """
        return self.compute(Step.of(batch, *self.angles(batch)), kv)

    @property
    def num_angles(self) -> int:
        return self._rotary.num_angles

    def angles(
        self, batch: Batch, out: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of a step, [T, num_angles] float32; written to `out` if given."""
        return self._rotary.cos_sin(batch, out)

    def compute(self, step: Step, kv: torch.Tensor) -> torch.Tensor:
        """`forward` of a step whose angles are known."""
        weights, eps, kernels = self._weights, self.config.rms_norm_eps, self._kernels
        residual = kernels.embed(step.batch.token_ids, weights.embed)
        normed = kernels.rms_norm(residual, weights.layers[0].input_norm, eps)
        layers, last = weights.layers, len(weights.layers) - 1
        if step.batch.adapters:
            layers = adapted_layers(layers, step.batch.adapters, samples_all=step.samples_all)
        for index, layer in enumerate(layers):
            query = self._project(layer, normed, kv[:, index], step)
            window = self.config.sliding_windows[index]
            attended = self._attend(query, kv[:, index], step, window)
            rows = step.batch.logit_rows
            if index == last and not step.samples_all:
                # Past the last attention no row needs its neighbours: keep those asked for. A chunk
                # from the middle of a prompt has none, its KV was all that counted.
                if len(rows) == 0:
                    return residual.new_empty((0, self.config.vocab_size))
                attended, residual = attended[rows], residual[rows]
            normed, residual = kernels.add_rms_norm(
                layer.o(attended), residual, layer.post_attention_norm, eps
            )
            output = layer.down(kernels.silu_mul(layer.gate_up(normed)))
            norm = weights.norm if index == last else weights.layers[index + 1].input_norm
            normed, residual = kernels.add_rms_norm(output, residual, norm, eps)
        return weights.head(normed)

    def _project(
        self, layer: LayerWeights, normed: torch.Tensor, kv_layer: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Store the step's keys and values; return its queries, [T, num_heads, head_dim]."""
        config = self.config
        heads = layer.qkv(normed).view(len(normed), -1, config.head_dim)
        query, key, value = torch.split(
            heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1
        )
        return self._kernels.rotary_store_kv(
            query,
            key,
            value,
            step.cos,
            step.sin,
            kv_layer,
            step.batch.slot_mapping,
            layer.head_norms,
            config.rms_norm_eps,
        )

    def _attend(
        self, query: torch.Tensor, kv_layer: torch.Tensor, step: Step, window: int
    ) -> torch.Tensor:
        """Attention of decode rows, then of prefill rows: [T, num_heads * head_dim]."""
        batch, parts = step.batch, []
        num_decodes = batch.num_decodes
        if num_decodes > 0:
            parts.append(self._attend_decodes(query[:num_decodes], kv_layer, batch, window))
        if len(query) > num_decodes:
            parts.append(
                self._kernels.prefill_attention(
                    query[num_decodes:],
                    kv_layer,
                    step.prefill_tables,
                    step.prefill_lens,
                    step.prefill_start,
                    self._scale,
                    window,
                )
            )
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended.flatten(1)

    def _attend_decodes(
        self, query: torch.Tensor, kv_layer: torch.Tensor, batch: Batch, window: int
    ) -> torch.Tensor:
        tables, lens = batch.block_tables[: len(query)], batch.seq_lens[: len(query)]
        # Windows begin at another token in each sequence: nothing of them is shared.
        if batch.groups is None or window > 0:
            return self._kernels.decode_attention(
                query, kv_layer, tables, lens, self._scale, window
            )
        return self._kernels.grouped_decode_attention(
            query, kv_layer, tables, lens, batch.groups, self._scale
        )
