"""Octavo beside llama.cpp's server, one core each: int4 against Q4 at 1, int8 against Q8 at 8, 32.

    python bench/llama.py --llama DIR

DIR is made by bench/setup_llama.sh. The whole service (router, workers, Redis) shares the one core
that llama.cpp's server is given with one thread; callers run on the other cores. The GGUF files are
made from the demo model's own by llama-quantize, or from --gguf FILE. At 1, Q4_0 (which llama.cpp
repacks for this processor) and the file as it comes compete; the faster counts.
"""

import argparse
import os
import subprocess
from pathlib import Path

from command import add_lengths, case_of, levels_of, make_parser, run
from figures import Figure
from octavo.checkpoint.cache import cache_dir
from octavo.checkpoint.resolve import resolve_model
from octavo.demo import DEMO_MODEL, GGUF_NAME
from peers import Llama, Octavo
from process import on_cores
from rounds import Case, Engine, Rows, over_best


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "llama")
    add_lengths(parser, "1,8,32")
    parser.add_argument("--llama", type=Path, required=True, help="made by bench/setup_llama.sh")
    parser.add_argument("--gguf", type=Path, help="the model as GGUF; default: the demo's file")
    parser.add_argument("--skip-int4", action="store_true", help="only int8 against Q8")
    last = max(os.sched_getaffinity(0))
    parser.add_argument("--core", type=int, default=last, help="for both engines")
    return parser.parse_args()


def quantized(llama: Path, source: Path, kind: str, folder: Path) -> Path:
    """The same weights in another of llama.cpp's formats."""
    target = folder / f"{kind}.gguf"
    quantize = [str(llama / "bin/llama-quantize"), "--allow-requantize"]
    subprocess.run(
        [*quantize, str(source), str(target), kind, "2"], check=True, capture_output=True
    )
    return target


def source_gguf(args: argparse.Namespace) -> Path:
    if args.gguf is not None:
        return Path(args.gguf)
    if args.model != DEMO_MODEL:
        raise SystemExit(f"--gguf FILE is needed for {args.model}")
    resolve_model(args.model)  # fetches the file, if it is not here
    return cache_dir() / "demo" / GGUF_NAME


def main() -> None:
    args = parse_arguments()
    args.cores = [args.core]
    context = args.input_tokens + args.output_tokens + 64
    crowds = [level for level in levels_of(args) if level > 1]

    def start(model: Path, work: Path, engines: list[Engine]) -> list[Case]:
        source = source_gguf(args)
        flags = args.octavo_flags.split()

        def llama(gguf: Path, slots: int) -> Engine:
            engines.append(Llama(gguf, work, args.llama.resolve(), slots, context))
            return engines[-1]

        def octavo(kind: str) -> Engine:
            engines.append(Octavo(model, work, None, [*flags, "--quantization", kind]))
            return engines[-1]

        cases = []
        with on_cores({args.core}):
            if 1 in levels_of(args) and not args.skip_int4:
                peers = [llama(quantized(args.llama, source, "Q4_0", work), 1), llama(source, 1)]
                cases.append(case_of(args, 1, [octavo("int4"), *peers]))
            if crowds:
                q8 = llama(quantized(args.llama, source, "Q8_0", work), max(crowds))
                pair = [octavo("int8"), q8]
                cases += [case_of(args, level, pair) for level in crowds]
        callers = os.sched_getaffinity(0) - {args.core}
        os.sched_setaffinity(0, callers or {args.core})
        return cases

    def make_figures(rows: Rows) -> list[Figure | None]:
        peers = sorted({row["engine"] for row in rows if row["engine"].startswith("llama")})
        return [
            over_best("int4-llama-1", rows, "1 at once", "octavo int4", peers),
            *(
                over_best(f"int8-llama-{level}", rows, f"{level} at once", "octavo int8", peers)
                for level in crowds
            ),
        ]

    what = f"one core, {args.input_tokens} tokens in, {args.output_tokens} out"
    run(args, what, start, make_figures)


if __name__ == "__main__":
    main()
