"""Guesses a sequence's next tokens from its own text: what followed where it stood there before.

    .. the cat sat on the mat. So the cat | sat on the mat .
       ------- ============== ^^^^^^^                           ^ match, = guess (its source)

A guess is looked up once and then followed, token by token, for as long as it is right. Finding one
takes a walk along the earlier places of the last two tokens, of bounded length. Cost and memory are
those of one dictionary entry for each token of the text.
"""

MIN_MATCH, MAX_MATCH = 2, 4  # tokens that must, and that are seen to, agree
MAX_PLACES = 16  # looked at, newest first, before the longest match so far has to do
MAX_INDEXED = 4096  # tokens that one step adds to the index: long prompts take several
# How often a guess was right after a match of so many tokens, before anything is known.
FIRST_RATES = {2: 0.3, 3: 0.5, 4: 0.7}
MEMORY = 0.85  # of a rate, for each new guess that was right or wrong
NOWHERE = 0  # no match ends before the first token


class PromptLookup:
    """The guesses for one sequence."""

    def __init__(self, token_ids: list[int]) -> None:
        """token_ids: the sequence's own list, which grows."""
        self._token_ids = token_ids
        # Place i is between tokens i - 1 and i; it is indexed once token i, a guess, is known.
        self._newest: dict[tuple[int, ...], int] = {}  # the newest place after two tokens
        self._earlier: list[int] = [NOWHERE] * MIN_MATCH  # by place: the one before it
        self._num_seen = len(token_ids)  # tokens compared with their guesses
        self._source = NOWHERE  # place of the guess for the next token
        self._num_matched = 0  # tokens that agree before it, at most MAX_MATCH
        self._rates = dict(FIRST_RATES)

    def follow(self) -> bool:
        """Take note of the tokens that came since the last call; whether there is a guess now."""
        token_ids = self._token_ids
        while self._num_seen < len(token_ids):
            if self._source != NOWHERE:
                self._judge(token_ids[self._num_seen] == token_ids[self._source])
            self._num_seen += 1
        self._index()
        if self._source == NOWHERE:
            self._find()
        return self._source != NOWHERE

    def chance(self, index: int) -> float:
        """How often a guess like the index-th one from here is right, if those before it are."""
        return self._rates[min(self._num_matched + index, MAX_MATCH)]

    def guess(self, num_tokens: int) -> list[int]:
        """The next tokens; a guess that reaches the end of the text goes on with itself."""
        token_ids = self._token_ids
        guess = token_ids[self._source : self._source + num_tokens]
        period = len(token_ids) - self._source
        while len(guess) < num_tokens:
            guess.append(guess[-period])
        return guess

    def _judge(self, was_right: bool) -> None:
        rate = self._rates[self._num_matched]
        self._rates[self._num_matched] = MEMORY * rate + (1 - MEMORY) * was_right
        if was_right:
            self._source += 1
            self._num_matched = min(self._num_matched + 1, MAX_MATCH)
        else:
            self._source = NOWHERE

    def _index(self) -> None:
        token_ids, earlier, newest = self._token_ids, self._earlier, self._newest
        for place in range(len(earlier), min(len(token_ids), len(earlier) + MAX_INDEXED)):
            last_two = (token_ids[place - 2], token_ids[place - 1])
            earlier.append(newest.get(last_two, NOWHERE))
            newest[last_two] = place

    def _find(self) -> None:
        """The longest match at the newest places of the last two tokens, of equals the newest."""
        place = self._newest.get(tuple(self._token_ids[-MIN_MATCH:]), NOWHERE)
        longest = 0
        for _ in range(MAX_PLACES):
            if place == NOWHERE or longest == MAX_MATCH:
                return
            num_matched = self._count_matching(place)
            if num_matched > longest:
                self._source, self._num_matched = place, num_matched
                longest = num_matched
            place = self._earlier[place]

    def _count_matching(self, place: int) -> int:
        """Tokens before a place that agree with the last of the text; two are known to."""
        token_ids = self._token_ids
        most = min(MAX_MATCH, place)
        for count in range(MIN_MATCH, most):
            if token_ids[place - 1 - count] != token_ids[-1 - count]:
                return count
        return most
