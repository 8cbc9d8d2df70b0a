"""Engines over tiny checkpoints, reference kernels in float32: what exactness tests run."""

from collections.abc import Iterable
from pathlib import Path

from checkpoints.paged import reference_kernels
from octavo.engine.build import build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.sequence import Sequence
from octavo.kernels.select import Kernels
from octavo.sampling_params import SamplingParams

GROUP = b"g" * 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def tiny_engine(path: Path, kernels: Kernels | None = None, **settings: object) -> Engine:
    defaults: dict[str, object] = {"dtype": "float32", "device": "cpu", "num_blocks": 256}
    config = EngineConfig(model=str(path), **defaults | settings)  # type: ignore[arg-type]
    return build_engine(config, kernels or reference_kernels())


def make_sequence(
    seq_id: str, prompt: list[int], sampling: SamplingParams = GREEDY, **fields: bool
) -> Sequence:
    return Sequence(seq_id, list(prompt), len(prompt), sampling, GROUP, **fields)


def run(engine: Engine, seqs: Iterable[Sequence]) -> list[list[int]]:
    """Output tokens of each sequence, all run together."""
    seqs = list(seqs)
    for seq in seqs:
        engine.check(seq)
        engine.scheduler.add(seq)
    while engine.scheduler.has_work:
        engine.step()
    assert engine.scheduler.pool.num_held == 0
    return [seq.output_token_ids for seq in seqs]
