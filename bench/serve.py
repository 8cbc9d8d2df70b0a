"""Output tokens per second of the running service beside vLLM's, at several concurrencies.

    python bench/serve.py                       # Octavo alone
    python bench/serve.py --vllm DIR --int8     # bfloat16 and int8 beside vLLM, round by round

Starts `octavo up` unless --address names a running service. DIR is an environment made by
bench/setup_vllm.sh. Prints a table, draws a plot, and writes every figure with --json FILE.
"""

import argparse
from pathlib import Path

from command import add_lengths, add_vllm, case_of, levels_of, make_parser, run
from figures import Figure
from peers import Octavo, Vllm, VllmOptions
from rounds import Case, Engine, Rows, over_best


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "serve")
    add_lengths(parser, "1,8,32,64")
    add_vllm(parser)
    parser.add_argument("--address", help="a running Octavo; default: start one")
    parser.add_argument("--int8", action="store_true", help="measure int8 weights, too")
    return parser.parse_args()


def start_octavo(
    args: argparse.Namespace, model: Path, work: Path, engines: list[Engine]
) -> list[Engine]:
    """Octavo in bfloat16 and, where asked, a second service in int8."""
    flags = args.octavo_flags.split()
    engines.append(Octavo(model, work, args.address, flags))
    if args.int8:
        engines.append(Octavo(model, work, None, [*flags, "--quantization", "int8"]))
    return engines


def start_vllm(
    args: argparse.Namespace, model: Path, work: Path, context: int, engines: list[Engine]
) -> None:
    """vLLM, once for each of the types that are to compete."""
    if args.vllm is None:
        return
    for dtype in args.vllm_dtype.split(","):
        engines.append(Vllm(model, work, args.vllm.resolve(), context, VllmOptions(dtype)))


def main() -> None:
    args = parse_arguments()

    def start(model: Path, work: Path, engines: list[Engine]) -> list[Case]:
        start_octavo(args, model, work, engines)
        start_vllm(args, model, work, args.input_tokens + args.output_tokens + 64, engines)
        return [case_of(args, level, engines) for level in levels_of(args)]

    def make_figures(rows: Rows) -> list[Figure | None]:
        peers = sorted({row["engine"] for row in rows if row["engine"].startswith("vllm")})
        return [
            over_best(f"{key}-{level}", rows, f"{level} at once", engine, peers)
            for key, engine in (("bf16-vllm", "octavo"), ("int8-vllm", "octavo int8"))
            for level in levels_of(args)
        ]

    run(args, f"{args.input_tokens} tokens in, {args.output_tokens} out", start, make_figures)


if __name__ == "__main__":
    main()
