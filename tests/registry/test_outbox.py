from hypothesis import given
from hypothesis import strategies as st

from octavo.registry.outbox import Batch, Outbox

KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), max_size=4)


def test_a_later_remove_cancels_an_earlier_store() -> None:
    outbox = Outbox(10)
    outbox.add([b"a", b"b"], [])
    outbox.add([b"c"], [b"a"])
    assert outbox.take(10) == Batch([b"b", b"c"], [b"a"])


def test_a_later_store_cancels_an_earlier_remove() -> None:
    outbox = Outbox(10)
    outbox.add([], [b"a"])
    outbox.add([b"a"], [])
    assert outbox.take(10) == Batch([b"a"], [])


def test_a_full_outbox_drops_stores_first_and_asks_for_a_snapshot() -> None:
    outbox = Outbox(4)
    assert outbox.add([b"1", b"2", b"3"], [b"4"])
    assert not outbox.add([b"5"], [])
    assert outbox.take(10) == Batch([], [b"4"])
    assert outbox.num_dropped == 4


def test_a_full_outbox_of_removes_drops_the_oldest() -> None:
    outbox = Outbox(4)
    assert outbox.add([], [b"1", b"2", b"3", b"4", b"5"])
    assert outbox.take(10) == Batch([], [b"4", b"5"])


@given(st.lists(st.tuples(KEYS, KEYS, st.booleans(), st.booleans()), max_size=30))
def test_the_receiver_ends_with_the_newest_event_of_every_block(
    steps: list[tuple[list[bytes], list[bytes], bool, bool]],
) -> None:
    outbox = Outbox(100)
    expected: dict[bytes, bool] = {}
    received: dict[bytes, bool] = {}
    for stored, removed, sends, fails in steps:
        outbox.add(stored, removed)
        expected |= dict.fromkeys(stored, True) | dict.fromkeys(removed, False)
        batch = outbox.take(2) if sends else Batch([], [])
        if fails:
            outbox.add(removed, stored)
            expected |= dict.fromkeys(removed, True) | dict.fromkeys(stored, False)
            outbox.put_back(batch)
        else:
            received |= dict.fromkeys(batch.stored, True) | dict.fromkeys(batch.removed, False)
    while outbox:
        batch = outbox.take(2)
        received |= dict.fromkeys(batch.stored, True) | dict.fromkeys(batch.removed, False)
    assert received == expected
