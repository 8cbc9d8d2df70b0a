"""The running service beside `transformers`: generate, continuous batching, one after another.

    python bench/generate.py [--vllm DIR]       # DIR only for its Intel OpenMP library

All are preloaded with tcmalloc and, with --vllm, Intel OpenMP, and use all cores.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from command import add_lengths, case_of, levels_of, make_parser, run
from figures import Figure
from offline import transformers_engine
from peers import Octavo
from rounds import Case, Engine, Rows, over_best

GENERATE, CONTINUOUS, SEQUENTIAL = "generate", "continuous", "sequential"
CROWD = 32  # requests at once, where the other two ways are compared


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "generate")
    add_lengths(parser, "1,8,32")
    parser.add_argument("--vllm", type=Path, help="environment made by bench/setup_vllm.sh")
    parser.add_argument("--dtype", default="auto", help="of transformers; a comma joins several")
    parser.add_argument("--sequential-rounds", type=int, default=3, help="of the slowest way")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    crowd = max(levels_of(args))
    crowd_name = f"{crowd} at once, continuous"
    sequential_name = f"{crowd} one after another"

    def start(model: Path, work: Path, engines: list[Engine]) -> list[Case]:
        octavo = Octavo(model, work, None, args.octavo_flags.split())
        engines.append(octavo)
        by_way: dict[str, list[Engine]] = {}
        for way in (GENERATE, CONTINUOUS, SEQUENTIAL):
            for dtype in args.dtype.split(","):
                engine = transformers_engine(way, model, work, dtype, args.vllm)
                engines.append(engine)
                by_way.setdefault(way, []).append(engine)
        cases = [case_of(args, level, [octavo, *by_way[GENERATE]]) for level in levels_of(args)]
        cases.append(case_of(args, crowd, [octavo, *by_way[CONTINUOUS]], crowd_name))
        slow = case_of(args, crowd, [octavo, *by_way[SEQUENTIAL]], sequential_name)

        def prompts(number: int) -> list[list[int]]:
            return slow.prompts(number)[: crowd if number >= 0 else 1]

        cases.append(replace(slow, prompts=prompts, rounds=args.sequential_rounds))
        return cases

    def make_figures(rows: Rows) -> list[Figure | None]:
        def peers(way: str) -> list[str]:
            return sorted({row["engine"] for row in rows if way in row["engine"]})

        figures = [
            over_best(
                f"bf16-transformers-{level}", rows, f"{level} at once", "octavo", peers(GENERATE)
            )
            for level in levels_of(args)
        ]
        if crowd == CROWD:
            ways = (
                ("bf16-continuous-32", crowd_name, CONTINUOUS),
                ("bf16-naive-32", sequential_name, SEQUENTIAL),
            )
            figures += [over_best(key, rows, name, "octavo", peers(way)) for key, name, way in ways]
        return figures

    run(args, f"{args.input_tokens} tokens in, {args.output_tokens} out", start, make_figures)


if __name__ == "__main__":
    main()
