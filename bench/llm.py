"""`LLM` in process with all cores beside vLLM's `LLM`: no server, batches of prompts.

    python bench/llm.py --vllm DIR [--settings '{"num_threads": 2}']

Each runs in a process of its own, vLLM's in the environment DIR made by bench/setup_vllm.sh; they
are given the same prompts in turn through pipes.
"""

import argparse
import json
from pathlib import Path

from command import add_lengths, add_vllm, case_of, levels_of, make_parser, run
from figures import Figure
from offline import octavo_llm, vllm_llm
from rounds import Case, Engine, Rows, over_best


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "llm")
    add_lengths(parser, "1,8,32")
    add_vllm(parser)
    parser.add_argument("--settings", type=json.loads, default={}, help="of octavo.LLM, as JSON")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()

    def start(model: Path, work: Path, engines: list[Engine]) -> list[Case]:
        engines.append(octavo_llm(model, work, args.settings))
        if args.vllm is not None:
            for dtype in args.vllm_dtype.split(","):
                context = args.input_tokens + args.output_tokens + 64
                engines.append(vllm_llm(model, work, args.vllm.resolve(), dtype, context))
        return [case_of(args, level, engines) for level in levels_of(args)]

    def make_figures(rows: Rows) -> list[Figure | None]:
        peers = sorted({row["engine"] for row in rows if row["engine"].startswith("vllm")})
        return [
            over_best(f"llm-vllm-{level}", rows, f"{level} at once", "octavo LLM", peers)
            for level in levels_of(args)
        ]

    what = f"LLM in process, {args.input_tokens} tokens in, {args.output_tokens} out"
    run(args, what, start, make_figures)


if __name__ == "__main__":
    main()
