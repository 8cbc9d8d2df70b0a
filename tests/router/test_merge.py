"""Two token streams of one sample become one, whatever their timing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.inference.v1.inference_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    FINISH_REASON_UNSPECIFIED,
)
from octavo.internal.v1alpha1.worker_pb2 import TokenDelta
from octavo.router.merge import TokenMerge
from octavo.rpc.errors import DataLoss


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.data())
def test_each_index_once_and_in_order(token_ids: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(token_ids)), max_size=5)) | {0})
    bounds = list(zip(cuts, [*cuts[1:], len(token_ids)], strict=True))
    last = len(token_ids)
    deltas = [
        TokenDelta(
            first_index=start,
            token_ids=token_ids[start:end],
            finish_reason=FINISH_REASON_STOP if end == last else FINISH_REASON_UNSPECIFIED,
        )
        for start, end in bounds
    ]
    first = TokenDelta(
        token_ids=token_ids[:1],
        finish_reason=FINISH_REASON_STOP if last == 1 else FINISH_REASON_UNSPECIFIED,
    )
    merge = TokenMerge()
    emitted: list[int] = []
    for delta in data.draw(st.permutations([*deltas, first])):
        assert not merge.is_finished or emitted == token_ids
        emitted += merge.add(delta)
        assert emitted == token_ids[: len(emitted)]
    assert emitted == token_ids and merge.finish_reason == FINISH_REASON_STOP


def test_streams_that_disagree_are_refused() -> None:
    merge = TokenMerge()
    assert merge.add(TokenDelta(token_ids=[5])) == (5,)
    with pytest.raises(DataLoss, match="token 0: 5, 6"):
        merge.add(TokenDelta(token_ids=[6, 7]))


def test_finish_waits_for_the_tokens_before_it() -> None:
    merge = TokenMerge()
    late = TokenDelta(first_index=1, token_ids=[8], finish_reason=FINISH_REASON_LENGTH)
    assert merge.add(late) == () and not merge.is_finished
    assert merge.add(TokenDelta(token_ids=[7])) == (7, 8) and merge.is_finished
