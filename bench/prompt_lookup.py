"""What guessing tokens from the prompt gains where answers quote it, and costs where they do not.

    python bench/prompt_lookup.py

Two services of the same weights, one with `--max-draft-tokens 0`, take turns. "quote" asks the
model to repeat some sentences word for word, "story" to write about something that the prompt names
in a few words. Requests ask for nothing: the decode worker decides where guesses pay. Tokens a step
are those of one sequence's share in a step: drawn tokens over drawn tokens that were not guessed.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from command import levels_of, make_parser, run
from figures import Figure, figure_of, ratio_of
from octavo.text.tokenizer import Tokenizer
from peers import Octavo
from rounds import Case, Engine, Rows, pick
from utilisation import counters

WITH, WITHOUT = "lookup", "no lookup"
QUOTE = "Repeat the following text word for word, and say nothing else.\n\n{}"
STORY = "Write a long story about {}."
SUBJECTS = [
    "a clock that runs backwards",
    "a fox who keeps bees",
    "the last train over a mountain pass",
    "two sisters and a lighthouse",
    "a gardener on the moon",
    "an old map of a drowned town",
    "a violin without strings",
    "the winter the river stood still",
]
NUM_SENTENCES = 6


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "prompt_lookup")
    parser.add_argument("--concurrency", default="1,32", help="requests at once")
    parser.add_argument("--output-tokens", type=int, default=96)
    parser.add_argument("--requests", type=int, default=4, help="a round, if more than at once")
    return parser.parse_args()


class Service(Octavo):
    """`octavo up`, whose decode worker tells what its guesses came to."""

    def __init__(self, name: str, model: Path, work: Path, flags: list[str], drafts: int) -> None:
        self._folder = work / name.replace(" ", "-")
        self._folder.mkdir()
        flags = [*flags, "--run-dir", str(self._folder)]
        super().__init__(model, self._folder, None, flags, {"OCTAVO_MAX_DRAFT_TOKENS": str(drafts)})
        self.name = name

    async def measure(
        self, prompts: list[list[int]], concurrency: int, max_tokens: int
    ) -> dict[str, float]:
        before = await counters(self._folder)
        figures = await super().measure(prompts, concurrency, max_tokens)
        after = await counters(self._folder)
        proposed, accepted = (
            getattr(after, name) - getattr(before, name)
            for name in ("draft_tokens_proposed", "draft_tokens_accepted")
        )
        # The prefill worker draws the first token of each request.
        drawn = after.tokens_generated - before.tokens_generated - len(prompts)
        return figures | {
            "tokens_per_step": drawn / (drawn - accepted),
            "accepted_percent": 100 * accepted / max(1, proposed),
        }


def quotes(tokenizer: Tokenizer, text: str, number: int, count: int) -> list[list[int]]:
    """Sentences of the text to repeat, other ones in each round."""
    sentences = [s.strip() + "." for s in text.replace("\n\n", " ").split(". ") if s.strip()]
    starts = [(number + 2) * count + index for index in range(count)]
    passages = [
        " ".join((sentences * 2)[start % len(sentences) :][:NUM_SENTENCES]) for start in starts
    ]
    return [ask(tokenizer, QUOTE.format(passage)) for passage in passages]


def stories(tokenizer: Tokenizer, number: int, count: int) -> list[list[int]]:
    subjects = [
        f"{SUBJECTS[index % len(SUBJECTS)]}, version {(number + 2) * count + index}"
        for index in range(count)
    ]
    return [ask(tokenizer, STORY.format(subject)) for subject in subjects]


def ask(tokenizer: Tokenizer, content: str) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": content}])


def main() -> None:
    args = parse_arguments()
    text = (Path(__file__).parent / "texts/harbour.txt").read_text(encoding="utf-8")

    def start(model: Path, work: Path, engines: list[Engine]) -> list[Case]:
        tokenizer = Tokenizer.load(model)
        flags = args.octavo_flags.split()
        engines.append(Service(WITH, model, work, flags, 8))
        engines.append(Service(WITHOUT, model, work, flags, 0))
        makers: dict[str, Any] = {
            "quote": partial(quotes, tokenizer, text),
            "story": partial(stories, tokenizer),
        }

        def prompts(kind: str, level: int, number: int) -> list[list[int]]:
            maker: list[list[int]] = makers[kind](number, max(level, args.requests))
            return maker

        return [
            Case(
                f"{kind}, {level} at once",
                level,
                engines,
                partial(prompts, kind, level),
                args.output_tokens,
            )
            for kind in makers
            for level in levels_of(args)
        ]

    run(args, f"{args.output_tokens} tokens out", start, partial(make_figures, levels_of(args)))


def make_figures(levels: list[int], rows: Rows) -> list[Figure | None]:
    found: list[Figure | None] = []
    for kind in ("quote", "story"):
        for level in levels:
            case = f"{kind}, {level} at once"
            ours, others = pick(rows, case, WITH), pick(rows, case, WITHOUT)
            if not ours:
                continue
            steps = pick(rows, case, WITH, "tokens_per_step")
            rates = pick(rows, case, WITH, "accepted_percent")
            detail = f"{sum(rates) / len(rates):.0f} % of guesses right"
            found.append(ratio_of(f"lookup-{kind}-{level}", ours, others, "tokens/s"))
            if (kind, level) == ("quote", 1):
                found.append(figure_of("lookup-steps", steps, detail))
            else:
                print(f"{case}: {sum(steps) / len(steps):.2f} tokens a step, {detail}")
    return found


if __name__ == "__main__":
    main()
