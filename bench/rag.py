"""Questions about one document: long shared prefix, short private rest, through the whole service.

    python bench/rag.py                       # Octavo alone
    python bench/rag.py --vllm DIR --int8     # beside vLLM with its prefix cache, round by round

Every prompt is the same 1,024 tokens and 64 of its own. Round -1 puts the document into every
engine's cache and is not counted; questions are new in each round. DIR is an environment made by
bench/setup_vllm.sh.
"""

import argparse
from functools import partial
from pathlib import Path

from command import VOCABULARY, add_vllm, make_parser, run
from figures import Figure
from load import random_prompts
from rounds import Case, Engine, Rows, over_best
from serve import start_octavo, start_vllm


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "rag")
    add_vllm(parser)
    parser.add_argument("--address", help="a running Octavo; default: start one")
    parser.add_argument("--int8", action="store_true", help="measure int8 weights, too")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--shared-tokens", type=int, default=1_024)
    parser.add_argument("--private-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1, help="per caller and round")
    return parser.parse_args()


def make_prompts(args: argparse.Namespace, number: int) -> list[list[int]]:
    """This round's questions behind the document, which is the same in all rounds."""
    (document,) = random_prompts(1, args.shared_tokens, VOCABULARY, seed=0)
    count = args.concurrency * (args.requests if number >= 0 else 1)
    questions = random_prompts(count, args.private_tokens, VOCABULARY, seed=number + 2)
    return [document + question for question in questions]


def main() -> None:
    args = parse_arguments()
    name = f"{args.concurrency} at once"

    def start(model: Path, work: Path, engines: list[Engine]) -> list[Case]:
        start_octavo(args, model, work, engines)
        context = args.shared_tokens + args.private_tokens + args.output_tokens + 64
        start_vllm(args, model, work, context, engines)

        return [
            Case(name, args.concurrency, engines, partial(make_prompts, args), args.output_tokens)
        ]

    def make_figures(rows: Rows) -> list[Figure | None]:
        peers = sorted({row["engine"] for row in rows if row["engine"].startswith("vllm")})
        return [
            over_best("rag-bf16", rows, name, "octavo", peers),
            over_best("rag-int8", rows, name, "octavo int8", peers),
        ]

    what = (
        f"{args.shared_tokens:,} shared and {args.private_tokens} private tokens in,"
        f" {args.output_tokens} out"
    )
    run(args, what, start, make_figures)


if __name__ == "__main__":
    main()
