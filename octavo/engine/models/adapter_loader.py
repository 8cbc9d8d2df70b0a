"""From an adapter's folder to an `Adapter` of one model: checked, cast, scaled and packed.

q_proj: A_q [r, K], B_q      down = [A_q; A_k; A_v] packed        one product for all parts
k_proj: A_k [r, K], B_k -->  ups  = scale * B_q, .. packed        each into its own columns
v_proj: A_v [r, K], B_v
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from octavo.checkpoint.adapter_config import load_adapter_config
from octavo.checkpoint.config import ModelConfig
from octavo.checkpoint.errors import UnsupportedAdapter
from octavo.engine.adapter import Adapter, AdapterLayer, LowRank, Up
from octavo.engine.models.adapter_tensors import Target, fingerprint, read_targets
from octavo.engine.models.tensor_names import layer_name
from octavo.kernels.select import Kernels, Linear


@dataclass(frozen=True, slots=True)
class AdapterLoader:
    """Reads adapters for one loaded model; any thread may."""

    model: ModelConfig
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    max_rank: int
    has_fp8_cache: bool

    @torch.inference_mode()
    def read(self, name: str, path: Path) -> Adapter:
        """Load a PEFT folder.

        Raises:
            UnsupportedAdapter: it does not fit; the message says what to do.
            CheckpointError: a file, field or tensor is missing or wrong.
        """
        if self.has_fp8_cache:  # whose weights are scaled (kv_scales.py), which adapters are not
            raise UnsupportedAdapter(
                "adapters are not served with an fp8 cache; use --kv-dtype auto"
            )
        targets = read_targets(path, load_adapter_config(path), self.model, self.max_rank)
        try:
            layers = tuple(self._layer(i, targets) for i in range(self.model.num_layers))
        except torch.OutOfMemoryError as error:
            raise UnsupportedAdapter(
                f"no GPU memory is left for adapter {name!r}: lower --gpu-memory-utilization"
            ) from error
        rank = max(len(target.a) for target in targets.values())
        return Adapter(name, fingerprint(targets), rank, layers)

    def _layer(self, index: int, targets: dict[str, Target]) -> AdapterLayer:
        def product(*modules: str) -> LowRank | None:
            return self._product([layer_name(index, module) for module in modules], targets)

        return AdapterLayer(
            qkv=product(*(f"self_attn.{x}_proj" for x in "qkv")),
            o=product("self_attn.o_proj"),
            gate_up=product("mlp.gate_proj", "mlp.up_proj"),
            down=product("mlp.down_proj"),
        )

    def _product(self, modules: Sequence[str], targets: dict[str, Target]) -> LowRank | None:
        """What is added to one product, whose outputs are the modules' side by side."""
        downs, ups = [], []
        rank = column = 0
        for module, width in zip(modules, self._widths(modules), strict=True):
            target = targets.get(module)
            if target is not None:
                columns = slice(column, column + width)
                scaled = target.b.float() * target.scale
                ranks = slice(rank, rank + len(target.a))
                ups.append(Up(ranks, columns, self._pack(scaled)))
                downs.append(target.a.float())
                rank = ranks.stop
            column += width
        return LowRank(self._pack(torch.cat(downs)), tuple(ups)) if ups else None

    def _widths(self, modules: Sequence[str]) -> list[int]:
        model = self.model
        kv_width = model.num_kv_heads * model.head_dim
        widths = {
            "q_proj": model.num_heads * model.head_dim,
            "k_proj": kv_width,
            "v_proj": kv_width,
            "gate_proj": model.intermediate_size,
            "up_proj": model.intermediate_size,
        }
        return [widths.get(module.rpartition(".")[2], model.hidden_size) for module in modules]

    def _pack(self, weight: torch.Tensor) -> Linear:
        """[N, K] to the product of rows in dtype, which no other row takes part in."""
        return self.kernels.pack_linear(weight.to(self.device, self.dtype), None)
