"""How long sequences wait between two tokens."""

import time
from collections.abc import Iterable, Mapping

from octavo.engine.sequence import SequenceOutput
from octavo.engine.stream import SequenceStream
from octavo.histogram import INTER_TOKEN_S, Histogram


class TokenGaps:
    """Of every step that gives a sample tokens behind its first: the time since those before."""

    def __init__(self) -> None:
        self.seconds = Histogram(INTER_TOKEN_S)

    def count(
        self, outputs: Iterable[SequenceOutput], streams: Mapping[str, SequenceStream]
    ) -> None:
        """Take one step's outputs, as they go to their streams."""
        now = time.monotonic()
        waits: dict[float, int] = {}  # samples by their last time: a batch shares it
        for output in outputs:
            stream = streams.get(output.seq_id) if output.token_ids else None
            if stream is not None:
                last = stream.token_times.get(output.sample_index)
                if last is not None:
                    waits[last] = waits.get(last, 0) + 1
                stream.token_times[output.sample_index] = now
        for last, num_samples in waits.items():
            self.seconds.add(now - last, num_samples)
