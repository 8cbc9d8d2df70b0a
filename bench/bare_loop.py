"""A bare decode loop, forward and argmax and nothing else, in a process of its own.

    python bench/bare_loop.py MODEL DTYPE QUANTIZATION CORE

A line of JSON in ({"rows", "context", "steps"}), one out: the seconds of each step. Every row has
blocks of its own, filled with noise: what they hold does not change what a step costs.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from octavo.checkpoint.config import load_config
from octavo.engine.batch import Batch
from octavo.engine.kv_cache import KVCache, KVLayout
from octavo.engine.models import DecoderModel, load_model
from octavo.kernels.cpu.argmax import argmax
from octavo.kernels.cpu.ops import warm_up
from octavo.kernels.select import for_device

BLOCK = 16
CPU = torch.device("cpu")


class BareLoop:
    """The model and a pool without a scheduler."""

    def __init__(self, path: Path, dtype: str, quantization: str | None) -> None:
        config = load_config(path)
        self._vocab_size = config.vocab_size
        self._layout = KVLayout(
            dtype, config.num_layers, config.num_kv_heads, config.head_dim, BLOCK, ""
        )
        self._model: DecoderModel = load_model(
            path,
            dtype=self._layout.torch_dtype,
            device=CPU,
            kernels=for_device(CPU),
            quantization=quantization,
        )
        warm_up(self._layout.torch_dtype)

    @torch.inference_mode()
    def run(self, rows: int, context: int, steps: int) -> list[float]:
        num_blocks = -(-(context + steps + 1) // BLOCK)
        kv = KVCache(self._layout, rows * num_blocks, CPU).kv
        kv.normal_()
        tables = torch.arange(rows * num_blocks, dtype=torch.int32).view(rows, num_blocks)
        batch = self._batch(tables, context)
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            _, token_ids = argmax(self._model.forward(batch, kv))
            following = self._batch(tables, int(batch.seq_lens[0]))
            batch = replace(following, token_ids=torch.from_numpy(token_ids))
            seconds.append(time.perf_counter() - begin)
        return seconds

    def _batch(self, tables: torch.Tensor, length: int) -> Batch:
        """The next token of every row, each `length` tokens long so far."""
        rows = len(tables)
        used = tables[:, : length // BLOCK + 1].contiguous()
        return Batch(
            token_ids=torch.randint(1_000, self._vocab_size, (rows,)),
            positions=torch.full((rows,), length),
            slot_mapping=used[:, -1].long() * BLOCK + length % BLOCK,
            block_tables=used,
            seq_lens=torch.full((rows,), length + 1, dtype=torch.int32),
            query_start=torch.arange(rows + 1, dtype=torch.int32),
            num_decodes=rows,
            logit_rows=torch.arange(rows),
        )


def main() -> None:
    path, dtype, quantization, core = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    loop = BareLoop(Path(path), dtype, quantization or None)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(loop.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
