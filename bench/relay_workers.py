"""A scripted prefill and a scripted decode worker in one process: `relay_workers.py MODEL STEP_MS`.

Prints their addresses as one JSON line once they listen, and serves until its input ends. They are
the tests' own workers: real servers that speak the internal protocol and compute nothing. A token
of each sequence comes every STEP_MS, of all at the same moment as from one batch; 0: at once.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from octavo.internal.v1alpha1 import worker_pb2
from octavo.router.model import ServedModel
from scripted_workers import BLOCK_SIZE, Handover, ScriptedDecodeWorker, ScriptedPrefillWorker

TEXT = Path(__file__).parent / "texts"
OUTPUT_TOKENS = 2_000  # of real text, over and over, so that detokenizing costs what it does


class PacedDecodeWorker(ScriptedDecodeWorker):
    """Makes a step every `step_s`."""

    step_s = 0.0

    async def _deltas(
        self, spec: worker_pb2.SequenceSpec, num_tokens: int | None = None
    ) -> AsyncIterator[worker_pb2.TokenDelta]:
        async for delta in super()._deltas(spec, num_tokens):
            if self.step_s:
                now = asyncio.get_running_loop().time()
                await asyncio.sleep(self.step_s - now % self.step_s)
            yield delta


async def serve(model: ServedModel, step_s: float) -> None:
    text = next(iter(sorted(TEXT.glob("*.txt")))).read_text(encoding="utf-8")
    token_ids = model.tokenizer.encode(text[: 8 * OUTPUT_TOKENS], add_special_tokens=False)
    facts = {
        "layout": worker_pb2.KvLayout(
            model_fingerprint=model.fingerprint or "", block_size=BLOCK_SIZE
        ),
        "vocab_size": model.vocab_size,
        "max_context_tokens": model.max_context_tokens,
    }
    handover = Handover()
    async with (
        ScriptedPrefillWorker("prefill-0", token_ids[:OUTPUT_TOKENS], handover, **facts) as prefill,
        PacedDecodeWorker("decode-0", token_ids[:OUTPUT_TOKENS], handover, **facts) as decode,
    ):
        decode.step_s = step_s
        print(json.dumps({"prefill": prefill.address, "decode": decode.address}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(ServedModel.load(sys.argv[1], "relayed"), float(sys.argv[2]) / 1e3))
